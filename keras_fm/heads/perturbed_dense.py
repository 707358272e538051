import numpy as np
from keras import ops

from keras_fm.heads import coefficient_noise
from keras_fm.kernel import checks
from keras_fm.parts.private_part import ReleasedLayer

_RELEASE_ARRAYS = ("hessian", "minimiser", "offset")


class PerturbedDense(ReleasedLayer):
    """A dense output layer with an objective in the place of the records: a
    released one, or that of the data with fixed noise beside it.

    `units`, `use_bias`, `bias_feature`, `input_dim`, `num_features` and the
    weights `kernel` and `bias` are those of `PrivateDense`.
    """

    # Weights -------------------------------------------------------------

    def set_weights_from_minimiser(self):
        """Moves kernel and bias to the minimum of the released objective."""
        minimiser = ops.convert_to_numpy(self._get_hidden("minimiser"))
        self.set_augmented_weights(minimiser)
        self._note()

    def set_augmented_weights(self, weights):
        """Sets kernel and bias from the weights of augmented features.

        Args:
            weights: `(m, units)`, the constant entry's row last.
        """
        self.kernel.assign(weights[: self.input_dim])
        if self.use_bias:
            self.bias.assign(weights[-1] * self.bias_feature)

    def _weights_in_objective(self):
        kernel = ops.convert_to_tensor(self.kernel)
        if not self.use_bias:
            return kernel
        bias = ops.convert_to_tensor(self.bias)
        return ops.concatenate(
            [kernel, ops.expand_dims(bias / self.bias_feature, 0)], axis=0
        )

    # Perturbation --------------------------------------------------------

    trains_on_release = True

    @property
    def is_perturbed(self):
        """Whether coefficient noise (published form) was fixed."""
        return self._has_hidden("linear_noise")

    def _is_whole(self):
        return self._has_hidden("minimiser")

    def set_release(self, hessian, minimiser, offset, ledger_json):
        """Puts a released objective, per record, in the place of the data.

        The objective is `offset + curvature * tr(D^T hessian D)` with
        `D = W - minimiser` and the curvature of the layer's loss (1/8 for
        cross-entropy, 1/2 for squared error): it has a gradient of exactly
        zero at its minimum, whatever the precision.

        Args:
            hessian: `(m, m)`, or `None` for the squared distance of kernel
                and bias to those of the minimiser.
            minimiser: `(m, units)`.
            offset: float, the value at the minimum without the constant
                that a record with outputs of zero contributes.
            ledger_json: str, kept with the layer when it is saved.
        """
        self.check_no_twin()
        self._set_objective(hessian, minimiser, offset)
        self.mark_released(ledger_json)

    def _set_objective(self, hessian, minimiser, offset):
        if self.is_perturbed:
            raise ValueError(
                f"Layer '{self.name}' already carries published noise; one "
                "objective is perturbed once. Build a new model."
            )
        if hessian is None and self._has_hidden("hessian"):
            # What an earlier release left is not to stay.
            hessian = np.eye(self.num_features)
            if self.use_bias:
                hessian[-1, -1] = self.bias_feature**2
        if hessian is not None:
            self._set_hidden("hessian", np.asarray(hessian))
        self._set_hidden("minimiser", np.asarray(minimiser))
        self._set_hidden("offset", np.asarray(offset))

    def fix_noise(self, linear_noise, quadratic_noise):
        """Fixes coefficient noise, already divided by the lot size.

        Args:
            linear_noise: `(m, units)`.
            quadratic_noise: `(units, m, m)`.

        Raises:
            ValueError: if the layer was perturbed or released before, or a
                number is not finite.
        """
        if self.is_perturbed or self.is_released:
            raise ValueError(
                f"The objective of layer '{self.name}' is perturbed already."
            )
        checks.all_finite(
            linear_noise=linear_noise, quadratic_noise=quadratic_noise
        )
        self._set_hidden("linear_noise", np.asarray(linear_noise))
        self._set_hidden(
            "quadratic_noise", coefficient_noise.symmetric(quadratic_noise)
        )

    def released_objective(self):
        # What a record with zero logits adds, whatever its label; of numbers
        # the most that it can.
        return self._released_loss() + self.units * self._kind.at_zero

    def _released_loss(self):
        return self.released_gap() + self._get_hidden("offset")

    def released_gap(self):
        """How far the released objective is above its minimum at the weights
        of now: a function of the release."""
        minimiser = self._get_hidden("minimiser")
        step = self.kernel - minimiser[: self.input_dim]
        if self.use_bias:
            # As it was set: exactly zero there.
            least = minimiser[self.input_dim :] * self.bias_feature
            bias = ops.expand_dims(ops.convert_to_tensor(self.bias), 0) - least
            if self._has_hidden("hessian"):
                bias = bias / self.bias_feature
            step = ops.concatenate([step, bias], axis=0)
        curved = step
        if self._has_hidden("hessian"):
            curved = ops.matmul(self._get_hidden("hessian"), step)
        return ops.sum(step * curved) * self._kind.query.curvature

    def _noise_loss(self):
        return coefficient_noise.loss(
            self._weights_in_objective(),
            self._get_hidden("linear_noise"),
            self._get_hidden("quadratic_noise"),
        )

    def linear_part(self, x):
        """What comes before the activation, for layer-wise relevance."""
        outputs = ops.matmul(x, self.kernel)
        if self.bias is None:
            return outputs
        return ops.add(outputs, ops.cast(self.bias, outputs.dtype))

    def call(self, inputs, training=None):
        training = self.in_training(training)
        kernel, bias = self.kernel, self.bias
        released = self._released is not None
        if released:
            # No record may move the weights, in whatever loop.
            kernel, bias = map(_still, (kernel, bias))
        outputs = ops.matmul(inputs, ops.cast(kernel, self.compute_dtype))
        if bias is not None:
            outputs = ops.add(outputs, ops.cast(bias, self.compute_dtype))
        outputs = self.read_out(outputs)
        if not training:
            return outputs
        if released:
            self.add_loss(self._released_loss())
            return ops.zeros_like(outputs)
        if self.is_perturbed:
            self.objective_in_use = True
            self.add_loss(self._noise_loss())
        return outputs

    def read_out(self, outputs):
        """Outputs of the objective in the unit of the targets."""
        return outputs

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.units)

    # Saving: a release is safe to save, noise is not ---------------------

    def _release_arrays(self):
        return {
            name: ops.convert_to_numpy(self._get_hidden(name))
            for name in _RELEASE_ARRAYS
            if self._has_hidden(name)
        }

    def _take_release_arrays(self, arrays):
        held = arrays.keys()
        found = {
            name: np.asarray(arrays[name]) if name in held else None
            for name in _RELEASE_ARRAYS
        }
        m = self.num_features
        for name, shape in (
            ("hessian", (m, m)),
            ("minimiser", (m, self.units)),
            ("offset", ()),
        ):
            value = found[name]
            if value is None and name == "hessian":
                continue
            if value is None or value.shape != shape:
                raise ValueError(
                    f"Layer '{self.name}' expected an array {name!r} of shape "
                    f"{shape} in the file. Received: "
                    f"{None if value is None else value.shape}"
                )
        self._set_objective(**found)


def _still(weight):
    return (
        None
        if weight is None
        else ops.stop_gradient(ops.convert_to_tensor(weight))
    )
