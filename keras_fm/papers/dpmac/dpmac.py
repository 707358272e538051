import warnings

import keras

from keras_fm.kernel import checks, domain
from keras_fm.papers.dpmac import dpmac_release
from keras_fm.papers.dpmac.coefficient_model import (
    CoefficientModel,
    check_orders,
    thresholds_of,
)
from keras_fm.papers.dpmac.step_noise import StepNoise
from keras_fm.parts import fit_frame, replicas, sealed
from keras_fm.parts.record_optimizer import RecordOptimizer
from keras_fm.stacks import affine_maps, layer_stack, output_losses
from keras_fm.stacks.coordinate_steps import CoordinateSteps, Stage


@keras.saving.register_keras_serializable(package="keras_fm")
class DPMAC(CoefficientModel):
    """DP-MAC: a deep network trained by private auxiliary coordinates.

    Harder, Koehler, Welling and Park, PPML 2018. Every record has its own
    copy z of the hidden units; given z, the objective

        loss(output, y) + penalty / 2 sum_k ||z_k - f_k(W_k [z_{k-1}; 1])||^2

    is a sum over layers, and of each layer only the Taylor coefficients at
    its current weights are used, summed over the batch. A record's first
    coefficient is an outer product (delta_k, [z_{k-1}; 1]), so it is clipped
    to its threshold before it exists: nothing of the size records x weights
    is formed. With noise on the sums
    (`keras_fm.callbacks.PrivateModel`) these are all that a step knows of the
    records, and without it there is no step. With `unprotected=True` this is
    the non-private twin (MAC): no clipping, mean over the batch.

    The noisy coefficients reach the weights as the gradient of a surrogate
    `sum_k <coefficient_k, W_k>`, so `compile` takes any optimizer, and
    `loss` in the logs of a private fit is that surrogate: a function of what
    was released, of no meaning otherwise. Without noise it is the mean loss
    of the output layer.

    On several devices (`tf.distribute.MirroredStrategy`, or
    `keras.distribution.DataParallel` on JAX) a step is that of one device: sums
    over the whole batch, noise of one draw (docs/scale.md).

    With P partitions (layers x orders), the thresholds as units, one record
    more or less moves all sums together by at most sqrt(P) in L2 norm; noise
    of standard deviation `noise_multiplier * sqrt(P) * threshold_k` on
    partition k is one Gaussian mechanism of that multiplier.

    Args:
        input_shape: shape of one record.
        layers: the layers that are trained: `Dense` and `Conv2D`, with
            `Flatten` and `Reshape` between them, the last a `Dense`.
            Activations as arguments: "linear", "relu", "leaky_relu",
            "sigmoid", "tanh", "softplus", "elu", "silu", "gelu".
        loss: `"binary_crossentropy"` (per class, on logits),
            `"categorical_crossentropy"` (softmax, on logits) or
            `"squared_error"` (`1/2 ||output - y||^2`; without labels y is
            what the first of `layers` reads: an auto-encoder).
        clip: L2 threshold of a record's first-order coefficient: a float, one
            for each trained layer, `"histogram"` (learned from a noisy
            histogram of norms when a private fit begins, Algorithm 2 of the
            paper) or `"analytic"`, see `analytic_thresholds`.
        clip_quantile: float in (0, 1), of `clip="histogram"`: the share of
            records whose coefficients are not clipped.
        order: 1, or 2 for second-order coefficients beside them (`Dense`
            only): a damped Newton step, so that `SGD(1.0)` is the plain one.
        curvature_clip: of `order=2`: like `clip`, of the Frobenius norm of a
            record's second-order coefficients of a layer.
        damping: float > 0, of `order=2`: added to the second derivatives of
            a mean record, beside half the spectral edge of the noise.
            Without, a step from a saturated unit has no bound.
        penalty: float > 0, the paper's mu.
        z_steps: int, steps of every record's coordinates.
        z_optimizer: a Keras optimizer that moves every entry on its own
            (SGD, Adam, RMSprop, Adagrad, Adadelta, Adamax, Lion, Ftrl):
            name, config or instance.
        below: layers with public, frozen or already released weights that
            are applied first.
        input_bound: `None`, or public L2 bound on what the first of `layers`
            reads; longer inputs are scaled back.
        planned_steps: `None`, or how many steps are paid for at the first
            private fit, if that is not to be the last.
        noise_multiplier: `None` for the noise that spends the budget, or the
            noise of the steps, in units of the sensitivity.
        unprotected: `True` for the non-private twin (MAC).

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`:
    logits, or reconstructions.

    Raises:
        ValueError: if a layer, activation or optimizer has no exact
            per-record coefficients, or an argument is outside its range.

    Example:

    ```python
    model = fm.models.DPMAC(
        (784,),
        [keras.layers.Dense(300, activation="relu"), keras.layers.Dense(10)],
        clip=0.1,
    )
    model.compile(keras.optimizers.Adam(1e-3))
    batches = fm.datasets.PoissonBatches(x, y, batch_size=500)
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(2.0, 1e-5))
    model.fit(batches, epochs=5, callbacks=[private])
    ```
    """

    def __init__(
        self,
        input_shape,
        layers,
        loss="binary_crossentropy",
        clip=0.1,
        clip_quantile=0.5,
        order=1,
        curvature_clip=None,
        damping=0.1,
        penalty=1.0,
        z_steps=30,
        z_optimizer="adam",
        below=(),
        input_bound=None,
        planned_steps=None,
        noise_multiplier=None,
        unprotected=False,
        **kwargs,
    ):
        layers = layer_stack.as_list(layers=layers)
        below = layer_stack.as_list(below=below)
        checks.either("order", order, (1, 2))
        checks.one_of("loss", loss, output_losses.LOSSES)
        given = {
            "input_shape": tuple(input_shape),
            "loss": loss,
            "clip": clip,
            "clip_quantile": checks.number(
                "clip_quantile",
                clip_quantile,
                above=0,
                below=1,
                wanted="between 0 and 1",
            ),
            "order": order,
            "curvature_clip": curvature_clip,
            "damping": checks.norm_bound("damping", damping),
            "penalty": checks.norm_bound("penalty", penalty),
            "z_steps": checks.count("z_steps", z_steps),
            "input_bound": checks.optional(
                checks.norm_bound, "input_bound", input_bound
            ),
            "planned_steps": None,
            "noise_multiplier": None,
            "unprotected": unprotected,
        }
        trained = layer_stack.check_layers(layers)
        activation = [layer_stack.activation_of(layer) for layer in trained]
        optimizer = RecordOptimizer(z_optimizer, len(trained) - 1)
        thresholds = {
            order: thresholds_of(name, value, len(trained))
            for order, name, value in (
                (1, "clip", clip),
                (2, "curvature_clip", curvature_clip),
            )
        }
        check_orders(order, clip, curvature_clip)

        inputs = keras.Input(tuple(input_shape), name="records")
        features = layer_stack.apply_public(below, inputs, input_bound)
        outputs, maps = features, []
        for layer in layers:
            if layer in trained:
                maps.append(affine_maps.of_layer(layer, outputs.shape[1:]))
            outputs = layer(outputs)
        noise = StepNoise(
            name="step_noise",
            dtype=trained[-1].dtype_policy,
            unprotected=unprotected,
        )
        outputs = noise(outputs)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

        stages = [
            Stage(map=made, activation=f) for made, f in zip(maps, activation)
        ]
        head = output_losses.LOSSES[loss](activation[-1], outputs.shape[-1])
        self.__dict__["_noise"] = noise
        self.__dict__["_about_to_train"] = False
        self.__dict__["_steps"] = CoordinateSteps(
            stages,
            head,
            given["penalty"],
            optimizer,
            given["z_steps"],
            project=clip == "analytic",
        )
        self.__dict__["_given"] = given
        self.plan_steps(planned_steps, noise_multiplier)
        if order == 2:
            self._check_curvature_size()
        if clip == "analytic":
            thresholds = self._analytic()
            warnings.warn(
                'clip="analytic": the thresholds hold for every record there '
                "could be, and are far above what records do "
                f"({', '.join(f'{t:.3g}' for t in thresholds[1])}). The "
                "noise follows them; a threshold chosen in advance is "
                "mostly better.",
                stacklevel=2,
            )
        self.__dict__["_thresholds"] = thresholds
        self._keep(given, layers, below, inputs, features)

    @property
    def _solver(self):
        return self._steps

    def _carrier(self):
        return self._noise

    # Noise ---------------------------------------------------------------

    def perturb(self, noise_multiplier, expected_batch_size, steps, seed=None):
        """Gives the non-private twin noise that no ledger knows, for studies
        of the steps themselves.

        From then on every training step clips, adds fresh noise and counts;
        steps beyond `steps` get zeros for coefficients, which with plain SGD
        leaves all weights where they are. A model whose allowed steps are
        not all taken goes on under the same values only.

        Args:
            noise_multiplier: float > 0, standard deviation of the noise in
                units of the sensitivity.
            expected_batch_size: float > 0, public; what sums are divided by.
            steps: int, all noisy steps there may be, those before included.
            seed: `None`, or an int: reproducible noise.

        Raises:
            ValueError: if the model is not `unprotected`, a value is outside
                its range, or steps under other values are still allowed.
        """
        if not self.unprotected:
            raise ValueError(
                "Noise that no ledger knows protects nobody by a statement. "
                "Give fit the callback `keras_fm.callbacks.PrivateModel`, or "
                "build the model with `unprotected=True`."
            )
        self.fix_steps(noise_multiplier, expected_batch_size, steps, seed=seed)
        self._noise.allow(steps - self.steps_taken)

    def fix_steps(
        self,
        noise_multiplier,
        expected_batch_size,
        steps,
        **more,
    ):
        """Fixes the noise of all steps, before the first or to go on; a fit
        with `PrivateModel` does it. Taken are those that it arms. The
        arguments are those of `StepNoise.fix`."""
        if not self.has_thresholds:
            raise ValueError(
                'With clip="histogram" the thresholds are learned first: fit '
                "with `PrivateModel`, or call `learn_thresholds`."
            )
        self._check_place()
        self._noise.fix(noise_multiplier, expected_batch_size, steps, **more)
        if getattr(self, "compiled", False):
            # A step traced before would not contain the noise.
            self.make_train_function(force=True)

    @property
    def planned_steps(self):
        """Steps that the first private fit pays for, or `None`: its own."""
        return self._given["planned_steps"]

    def plan_steps(self, planned_steps=None, noise_multiplier=None):
        """Sets what the arguments of these names set."""
        for name, value, check in (
            ("planned_steps", planned_steps, checks.count),
            ("noise_multiplier", noise_multiplier, checks.norm_bound),
        ):
            if value is not None:
                self._given[name] = check(name, value)

    @property
    def planned_noise(self):
        """The noise multiplier that was asked for, or `None`."""
        return self._given["noise_multiplier"]

    reads_every_step = True

    def release_names(self):
        steps = f"{self.name} (steps)"
        if self.learns_thresholds:
            return [f"{self.name} (thresholds)", steps]
        return [steps]

    def steps(self, reading):
        """Thresholds and all steps, see `dpmac_release`."""
        return dpmac_release.steps(self, reading)

    def paid_mechanism(self, reading):
        """See `dpmac_release.paid_mechanism`."""
        return dpmac_release.paid_mechanism(self, reading)

    def samples_of(self, reading):
        """See `dpmac_release.samples_of`."""
        return dpmac_release.samples_of(self, reading)

    def check_batches(self, batches):
        """See `dpmac_release.check_parts`."""
        dpmac_release.check_parts(self, batches)

    def top_shares(self, left):
        """How what is left of the budget is split over the releases."""
        return dpmac_release.top_shares(self, left)

    def check_labels(self, y, n):
        """Refuses labels that no output is for."""
        if y is not None and self.needs_labels:
            domain.check_labels(y, self.output_shape[-1])

    def _check_place(self):
        count, mirrored = replicas.of_strategy(self)
        if count > 1 and not mirrored:
            raise ValueError(
                "Of the tf.distribute strategies with several replicas, noisy "
                "steps are known to be right under MirroredStrategy alone. "
                f"Received: {type(self.distribute_strategy).__name__} with "
                f"{count} replicas"
            )
        if count > 1 and not self._noise.is_mirrored:
            raise ValueError(
                "The model was built outside the strategy that it is trained "
                "under, so its replicas would not count one step together. "
                "Build and compile it under `strategy.scope()`. Received: "
                f"{count} replicas"
            )
        together = replicas.processes(self)
        if together > 1:
            raise ValueError(
                "Each of several processes would add its own noise. Train in "
                f"one. Received: {together} processes"
            )
        if keras.backend.backend() == "torch" and self.jit_compile:
            raise ValueError(
                "`jit_compile=True` on PyTorch would compile the noise of "
                "one step into all of them. Compile with jit_compile=False."
            )

    @property
    def is_perturbed(self):
        """Whether training steps are noisy, here or before saving."""
        return self._noise.is_perturbed

    @property
    def noise_multiplier(self):
        """As `perturb` fixed it, or `None`."""
        return self._noise.noise_multiplier

    @property
    def expected_batch_size(self):
        """As `perturb` fixed it, or `None`."""
        return self._noise.expected_batch_size

    @property
    def steps_taken(self):
        """Noisy steps that were released; saved with the model."""
        return self._noise.steps_taken

    @property
    def steps_allowed(self):
        """Noisy steps that were paid for; saved with the model."""
        return self._noise.steps_allowed

    @property
    def steps_refused(self):
        """Training steps beyond those allowed, which released nothing."""
        return self._noise.steps_refused

    @property
    def objective_in_use(self):
        """Whether a training step with noise was traced."""
        return self._noise.objective_in_use

    @objective_in_use.setter
    def objective_in_use(self, value):
        self._noise.objective_in_use = value

    def _check_can_train(self):
        noise = self._noise
        if noise.unprotected:
            if self.is_perturbed and not noise.has_seed:
                raise ValueError(
                    "This model was trained under noise before it was saved, "
                    "and has no noise now. Call `perturb` again."
                )
            if self.is_perturbed:
                self._check_place()
            return
        # A fit that ended by an error left it armed.
        if noise.armed_by is not None and not self._is_of(noise.armed_by):
            noise.disarm()
        if not noise.may_step:
            noise.refuse_step()
        self._check_place()

    def _is_of(self, callback):
        found = fit_frame.callback_list(self)
        return found is not None and callback in found.callbacks

    # Keras' training -----------------------------------------------------

    def make_train_function(self, force=False):
        self.__dict__["_about_to_train"] = True
        return super().make_train_function(force=force)

    def make_test_function(self, force=False):
        self.__dict__["_about_to_train"] = False
        return super().make_test_function(force=force)

    def reset_metrics(self):
        # What an epoch of `fit` begins with, after the callbacks; JAX loses
        # all variables in a step that raises.
        if self._about_to_train:
            self._check_can_train()
        super().reset_metrics()

    def train_on_batch(self, *args, **kwargs):
        if not self.unprotected:
            # Only batches that `fit` draws are sampled as was paid for.
            self._noise.refuse_step()
        self._check_can_train()
        count, _ = replicas.of_strategy(self)
        if self.is_perturbed and count > 1:
            raise ValueError(
                "Keras gives every replica the whole batch here, so a record "
                "would count several times. Use `fit`. Received: "
                f"train_on_batch with {count} replicas"
            )
        return super().train_on_batch(*args, **kwargs)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if sealed.takes_metrics() and not self._shows_metrics:
            return sealed.logs(self)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_metrics_result(self):
        return sealed.results(self)

    @property
    def _shows_metrics(self):
        """Whether a step may log metrics of the records: it claims, or is not
        private at all."""
        return self.unprotected or self.published

    # Saving --------------------------------------------------------------

    def get_config(self):
        optimizer = self._steps.optimizer.optimizer
        return {
            **super().get_config(),
            "z_optimizer": keras.optimizers.serialize(optimizer),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        thresholds = config.pop("thresholds", None)
        model = super().from_config(config, custom_objects)
        if thresholds is not None:
            model.learn_thresholds(thresholds)
        return model
