import math

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.private_maps.pretrained_layer import PretrainedLayer
from keras_fm.public.local_response_normalization import local_response


class ConvolutionalEnergy(PretrainedLayer):
    """Maps, visible units and energy of a convolutional RBM whose hidden
    probabilities are a polynomial: what `ChebyshevCRBM` is without a word of
    privacy. Its arguments are attributes here."""

    @property
    def approximation(self):
        """The `keras_fm.polynomials` object of the activation, or `None`."""
        return self._approximation

    # Weights and shapes --------------------------------------------------

    def build(self, input_shape):
        if self.conditions:
            input_shape, condition_shape = input_shape
            if tuple(condition_shape[1:]) != (self.conditions,):
                raise ValueError(
                    f"Conditions must have shape (batch, {self.conditions}). "
                    f"Received: shape={tuple(condition_shape)}"
                )
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                "ChebyshevCRBM expects inputs of a known shape (batch, height, "
                f"width, channels). Received: input_shape={tuple(input_shape)}"
            )
        self.record_shape = tuple(input_shape[1:])
        if min(self.map_shape) < 1:
            raise ValueError(
                "`kernel_size` must not exceed the image with "
                f'padding="valid". Received: kernel_size={self.kernel_size}, '
                f"input_shape={tuple(input_shape)}"
            )
        channels = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, channels, self.filters),
            initializer="glorot_uniform",
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.filters,), initializer="zeros"
        )
        self.visible_bias = self.add_weight(
            name="visible_bias", shape=(channels,), initializer="zeros"
        )
        self.condition_kernel = self.visible_condition_kernel = None
        if self.conditions:
            self.condition_kernel = self.add_weight(
                name="condition_kernel",
                shape=(self.conditions, self.filters),
                initializer="zeros",
            )
            self.visible_condition_kernel = self.add_weight(
                name="visible_condition_kernel",
                shape=(self.conditions, channels),
                initializer="zeros",
            )
        # Visible biases have no gradient outside pre-training.
        self.set_pretraining(False)

    def set_pretraining(self, value):
        """Whether the biases of the visible units train with the layer."""
        for weight in (self.visible_bias, self.visible_condition_kernel):
            if weight is not None:
                weight.trainable = value

    def compute_output_shape(self, input_shape):
        if self.conditions:
            input_shape = input_shape[0]
        sizes = [
            None if size is None else self._map_size(size, axis)
            for axis, size in enumerate(input_shape[1:3])
        ]
        return (input_shape[0], *sizes, self.filters)

    def _map_size(self, size, axis):
        reach = self.kernel_size[axis] - 1 if self.padding == "valid" else 0
        return -(-(size - reach) // self.strides[axis])

    @property
    def map_shape(self):
        """`(height, width)` of one map."""
        return tuple(
            self._map_size(size, axis)
            for axis, size in enumerate(self.record_shape[:2])
        )

    @property
    def patch_size(self):
        """Entries of a patch, without the constant."""
        return math.prod(self.kernel_size) * self.record_shape[-1]

    def _margins(self, strides):
        """What "same" padding adds before and after, for both axes."""
        if self.padding == "valid":
            return [(0, 0), (0, 0)]
        margins = []
        for size, kernel, stride in zip(
            self.record_shape, self.kernel_size, strides
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            margins.append((total // 2, total - total // 2))
        return margins

    # Hidden units --------------------------------------------------------

    def parts(self, inputs):
        """`(visible units, conditions or None)` of what the layer reads."""
        v, conditions = inputs if self.conditions else (inputs, None)
        # Keras casts floats only; whole numbers would cut the weights.
        v = ops.cast(v, self.compute_dtype)
        if conditions is not None:
            conditions = ops.cast(conditions, self.compute_dtype)
        return v, conditions

    def preactivation(self, inputs):
        """x = W * v + b, with dynamic biases if there are conditions.

        Returns:
            `(batch, new_height, new_width, filters)`.
        """
        v, conditions = self.parts(inputs)
        v = v - ops.cast(self.centre, v.dtype)
        v = ops.pad(v, [(0, 0), *self._margins(self.strides), (0, 0)])
        x = ops.conv(
            v,
            ops.cast(self.kernel, v.dtype),
            strides=self.strides,
            padding="valid",
            data_format="channels_last",
        )
        if self.clip:
            x = x * self._shrink(v)
        x = x + ops.cast(self.bias, x.dtype)
        if conditions is not None:
            dynamic = ops.matmul(
                conditions, ops.cast(self.condition_kernel, conditions.dtype)
            )
            x = x + ops.cast(dynamic, x.dtype)[:, None, None, :]
        return x

    def _shrink(self, padded):
        """What brings every patch to its bound, `(batch, h, w, 1)`."""
        # Half precision overflows in the squares.
        squares = ops.sum(ops.square(ops.cast(padded, "float32")), axis=-1)
        # Products: a convolution of one channel takes several times as long.
        down, across = (
            ops.convert_to_tensor(_windows(*axis))
            for axis in zip(padded.shape[1:3], self.kernel_size, self.strides)
        )
        sums = ops.matmul(ops.transpose(down), ops.matmul(squares, across))
        bound = self.input_bound
        # The root of no zero, whose slope is infinite.
        norms = ops.sqrt(ops.maximum(sums, bound * bound))
        return ops.expand_dims(ops.cast(bound / norms, padded.dtype), -1)

    def normalised(self, x):
        """X = x / Z, in [-1, 1]."""
        if self.normalization == "local":
            return local_response(x, self.size, self.q, self.a, self.beta)
        if self.normalization == "batch":
            largest = ops.max(ops.abs(x))
            return x / ops.maximum(largest, ops.cast(1e-6, x.dtype))
        return ops.clip(x / ops.cast(self.energy_scale, x.dtype), -1.0, 1.0)

    def scaled(self, coefficients):
        """Coefficients of a polynomial in X, of those in `gain * X`."""
        return [c * self.gain**power for power, c in enumerate(coefficients)]

    def activation(self, normalised, training=False):
        """P(h = 1 | v) from X, with the fixed noise while training."""
        noise = None
        # A layer that rests is used as it is.
        if training and self.trainable and self.is_perturbed:
            self.objective_in_use = True
            name = "coefficient_noise"
            noise = (
                self._get_hidden(name)
                if self.noise == "once"
                else self._draw_laplace(name)
            )
        # High powers need more than half precision.
        z = ops.cast(normalised, "float32")
        if self.polynomial == "exact":
            value = ops.sigmoid(self.gain * z)
        elif self.polynomial == "piecewise":
            value = _piecewise(self._approximation, self.gain * z)
        else:
            value = _polynomial(
                self.scaled(self._approximation.coefficients), z
            )
        if noise is not None:
            value = value + _horner(
                [noise[power] for power in range(noise.shape[0])], z
            )
        if noise is not None or self.polynomial != "exact":
            value = ops.clip(value, 0.0, 1.0)
        return ops.cast(value, normalised.dtype)

    def call(self, inputs, training=None):
        training = self.in_training(training)
        x = self.preactivation(inputs)
        return self.activation(self.normalised(x), training)

    # Visible units and energy --------------------------------------------

    def visible_logits(self, hidden, conditions=None):
        """`W^T * h + c`: what the visible units read from the maps.

        Args:
            hidden: `(batch, new_height, new_width, filters)`.
            conditions: `(batch, conditions)`, if the layer has them.

        Returns:
            `(batch, height, width, channels)`.
        """
        hidden = ops.cast(hidden, self.compute_dtype)
        raw = ops.conv_transpose(
            hidden,
            ops.cast(self.kernel, hidden.dtype),
            strides=self.strides,
            padding="valid",
            data_format="channels_last",
        )
        # The adjoint of: pad, convolve, and drop what no filter reached.
        margins = self._margins(self.strides)
        fill = [(0, 0)]
        for axis, size in enumerate(self.record_shape[:2]):
            padded = size + sum(margins[axis])
            fill.append((0, max(0, padded - raw.shape[axis + 1])))
        raw = ops.pad(raw, [*fill, (0, 0)])
        (top, _), (left, _) = margins
        height, width = self.record_shape[:2]
        logits = raw[:, top : top + height, left : left + width]
        return logits + ops.cast(self._visible_bias(conditions), logits.dtype)

    def _visible_bias(self, conditions):
        bias = ops.convert_to_tensor(self.visible_bias)
        if conditions is None:
            return bias
        dynamic = ops.matmul(
            ops.cast(conditions, bias.dtype), self.visible_condition_kernel
        )
        return bias + dynamic[:, None, None, :]

    def visible_mean(self, hidden, conditions=None):
        """E[v | h]: probabilities of binary units, means of Gaussian ones."""
        z = self.visible_logits(hidden, conditions)
        if self.visible == "binary":
            return ops.sigmoid(z)
        return z + ops.cast(self.centre, z.dtype)

    def reconstruct(self, inputs, training=False):
        """E[v | h = P(h = 1 | v)]."""
        hidden = self.call(inputs, training=training)
        return self.visible_mean(hidden, self.parts(inputs)[1])

    def chain(self, inputs, steps, seed, training=False):
        """The end of a Gibbs chain of `steps` steps (CD-k): hidden states
        are drawn, visible units take their means.

        Args:
            inputs: where the chain starts.
            steps: int k.
            seed: a `keras.random.SeedGenerator`.

        Returns:
            visible units, shape of `inputs` (the first of them).
        """
        v, conditions = self.parts(inputs)
        for _ in range(checks.count("steps", steps)):
            given = v if conditions is None else [v, conditions]
            p = self.call(given, training=training)
            states = keras.random.uniform(
                ops.shape(p), dtype="float32", seed=seed
            )
            # In half precision a draw below 1 may round up to it.
            states = ops.cast(states < ops.cast(p, "float32"), p.dtype)
            v = ops.cast(self.visible_mean(states, conditions), v.dtype)
        return v

    def energy(self, inputs, hidden=None, training=False):
        """E(v, h) of every record.

        Args:
            inputs: visible units (and conditions).
            hidden: `None`, or states of the hidden units: the energy of Eq.
                4. `None` takes P(h = 1 | v) in their place: Eq. 12 with
                `polynomial="exact"`, else the polynomial energy of Eq. 14.
            training: whether fixed noise acts.

        Returns:
            `(batch,)` tensor.
        """
        if training:
            self.enter_training()
        v, conditions = self.parts(inputs)
        x = self.preactivation(inputs)
        if hidden is None:
            hidden = self.activation(self.normalised(x), training)
        x, hidden, v = (ops.cast(t, "float32") for t in (x, hidden, v))
        bound = -ops.sum(x * hidden, axis=(1, 2, 3))
        bias = ops.cast(self._visible_bias(conditions), "float32")
        if self.visible == "binary":
            return bound - ops.sum(v * bias, axis=(1, 2, 3))
        away = v - self.centre - bias
        return bound + ops.sum(away * away, axis=(1, 2, 3)) / 2


def _windows(length, size, stride):
    """Which points of a line are in which window, `(length, windows)`."""
    starts = stride * np.arange((length - size) // stride + 1)
    past = np.arange(length)[:, None] - starts
    return ((past >= 0) & (past < size)).astype("float32")


def _polynomial(coefficients, z):
    constant, *others = coefficients
    # Beside its value at 0 an odd function: half of the passes.
    if len(others) > 1 and not any(others[1::2]):
        return _horner(others[::2], z * z) * z + constant
    return _horner(coefficients, z)


def _horner(coefficients, z):
    *others, value = coefficients
    for coefficient in reversed(others):
        value = value * z + coefficient
    return value if others else value + ops.zeros_like(z)


def _piecewise(approximation, z):
    """A sum of ramps: every knot changes the slope."""
    knots, values = approximation.knots, approximation.values
    # Python numbers: NumPy's would take over what they multiply.
    slopes = np.diff(values) / np.diff(knots)
    changes = np.diff(slopes).tolist()
    value = values[0] + float(slopes[0]) * (z - knots[0])
    for knot, change in zip(knots[1:-1], changes):
        value = value + change * ops.relu(z - knot)
    return value
