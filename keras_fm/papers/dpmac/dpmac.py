import math
import warnings

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks, domain
from keras_fm.papers.dpmac import coefficient_sums, dpmac_release
from keras_fm.papers.dpmac.step_noise import StepNoise
from keras_fm.parts import fit_frame, replicas, sealed
from keras_fm.parts.record_optimizer import RecordOptimizer
from keras_fm.stacks import affine_maps, layer_stack, output_losses
from keras_fm.stacks.coordinate_steps import CoordinateSteps, Stage, constant
from keras_fm.stacks.network_expansion import weights_of
from keras_fm.stacks.stack_model import StackModel

_BATCH = 1024
# Floats in all second-order coefficients of a layer.
_LARGEST_CURVATURE = 5e7
# Values of `clip` that are no thresholds.
_LEARNED = ("histogram", "analytic")


@keras.saving.register_keras_serializable(package="keras_fm")
class DPMAC(StackModel):
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
            order: _thresholds(name, value, len(trained))
            for order, name, value in (
                (1, "clip", clip),
                (2, "curvature_clip", curvature_clip),
            )
        }
        _check_orders(order, clip, curvature_clip)

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

    # What is released ----------------------------------------------------

    @property
    def partitions(self):
        """List of `(layer name, order, threshold)`: what a step releases.

        Thresholds that are still to be learned are `None`.
        """
        return [
            (
                layer.name,
                order,
                self._thresholds[order] and self._thresholds[order][index],
            )
            for index, layer in enumerate(self.private_layers)
            for order in range(1, self._given["order"] + 1)
        ]

    @property
    def sensitivity(self):
        """L2 sensitivity (add_remove) of all partitions together, each in
        units of its threshold: the square root of their number."""
        return math.sqrt(len(self.partitions))

    @property
    def learns_thresholds(self):
        """Whether a private fit learns the thresholds."""
        return self._given["clip"] == "histogram"

    @property
    def has_thresholds(self):
        """Whether every partition has a threshold."""
        return all(threshold for _, _, threshold in self.partitions)

    @property
    def clip_quantile(self):
        """The share of records that learned thresholds leave unclipped."""
        return self._given["clip_quantile"]

    def learn_thresholds(self, values):
        """Takes thresholds in the place of those it has.

        Args:
            values: floats > 0 in the order of `partitions`, public or
                released.

        Raises:
            ValueError: if noise was fixed for others.
        """
        if self.is_perturbed:
            raise ValueError(
                "The noise was fixed for the thresholds that the model has. "
                "Build a new model."
            )
        if len(values) != len(self.partitions):
            raise ValueError(
                f"`values` must hold one number for each of the "
                f"{len(self.partitions)} partitions. Received: {values}"
            )
        values = [checks.norm_bound("values", v) for v in values]
        orders = self._given["order"]
        self.__dict__["_thresholds"] = {
            order: values[order - 1 :: orders] for order in range(1, orders + 1)
        }
        self._given["thresholds"] = values
        # A compiled step holds the old ones.
        self._noise.generation += 1

    def analytic_thresholds(self):
        """Bounds on the norm of any record's coefficients.

        With f in [low, high] for every hidden unit and z brought back to
        that range after the Z-steps (Appendices E-H of the paper bound the
        same quantities; this proof is our own):

        * `|f(a) - z| |f'(a)|` is at most 4/27 for the sigmoid, 32/27 for
          tanh, so a hidden layer has `||delta|| <= penalty sqrt(units)`
          times that;
        * the output layer has `||delta|| <= sqrt(units)` (binary cross-
          entropy, y in [0, 1]), `sqrt(2)` (softmax, y a distribution), or
          `sqrt(units)` times the constant above (squared error, y brought
          into the range of the activation);
        * what a hidden layer hands on has norm at most `sqrt(units) R`,
          `R = max(|low|, |high|)`, the features `input_bound`; the constant
          adds 1 to its square. A convolution reads an entry as often as its
          patches overlap, and adds 1 for each position.

        The norm of a coefficient is at most the product of both factors;
        of second-order ones, of the norm of the second derivatives and the
        square of the inputs' norm.

        Returns:
            list of floats in the order of `partitions`.

        Raises:
            ValueError: if an activation is not bounded, or there is no
                `input_bound`.
        """
        found = self._analytic()
        return [
            found[order][index]
            for index in range(len(self.private_layers))
            for order in range(1, self._given["order"] + 1)
        ]

    def _analytic(self):
        bound = self._given["input_bound"]
        if bound is None:
            raise ValueError(
                'clip="analytic" needs a public `input_bound` on the norm of '
                "what the first layer reads. Received: input_bound=None"
            )
        steps, found = self._steps, {1: [], 2: []}
        norm = bound
        for stage in steps.stages:
            f, units = stage.activation, math.prod(stage.map.output_shape)
            if stage is steps.stages[-1]:
                slope, curve = (
                    steps.loss.slope_bound,
                    steps.loss.curvature_bound,
                )  # noqa: E501
            else:
                slope = steps.penalty * math.sqrt(units) * f.pull
                curve = steps.penalty * math.sqrt(units) * f.bend
            if not math.isfinite(slope):
                raise ValueError(
                    'clip="analytic" needs bounded activations, "sigmoid" or '
                    f"\"tanh\". Received: layer '{stage.layer.name}' with "
                    f"activation={f.name!r}"
                )
            read = stage.map.input_bound(norm)
            found[1].append(slope * read)
            found[2].append(curve * read**2)
            if f.bounds is not None:
                largest = max(abs(end) for end in f.bounds)
                norm = math.sqrt(units) * largest
        return found

    def _check_curvature_size(self):
        for stage in self._steps.stages:
            layer = stage.layer
            if not isinstance(stage.map, affine_maps.DenseMap):
                raise ValueError(
                    "`order=2` is for Dense layers only. Received: layer "
                    f"'{layer.name}' ({type(layer).__name__})"
                )
            inputs = stage.map.input_shape[0] + layer.use_bias
            size = layer.units * inputs**2
            if size > _LARGEST_CURVATURE:
                raise ValueError(
                    f"The second-order coefficients of layer '{layer.name}' "
                    f"would be {layer.units} matrices of {inputs} x {inputs}, "
                    f"{size:.3g} numbers (at most {_LARGEST_CURVATURE:g}). "
                    "Reduce its inputs with a layer in `below`, or use "
                    "`order=1`."
                )

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

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        features = self._features(x)
        y = self._targets(y, features)
        private = training and self.is_perturbed
        rows = coefficient_sums.weights_of_rows(
            sample_weight, features, private
        )
        penalties = self._weight_penalties()
        if not training:
            outputs = constant(y_pred)
            mean = layer_stack.mean(self._steps.loss.value(outputs, y), rows)
            return replicas.share(mean + penalties)
        self._noise.enter_training()
        weights = self._steps.weights()
        affine = self._steps.forward(features, weights)
        meetings = self._meet(features, y, weights, affine)
        if private:
            coefficients = self._released(meetings, rows)
        else:
            coefficients = self._exact(meetings, rows)
        surrogate = self._surrogate(coefficients)
        if private:
            sealed.expect_metrics()
            return replicas.share(surrogate + penalties)
        last = self._steps.stages[-1].activation.value(affine[-1])
        mean = layer_stack.mean(self._steps.loss.value(last, y), rows)
        # The value of the one with the gradient of the other.
        surrogate = surrogate - ops.stop_gradient(surrogate)
        return replicas.share(mean + surrogate + penalties)

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

    def _targets(self, y, features):
        y = super()._targets(y, features)
        if self._given["clip"] == "analytic" and not self.needs_labels:
            y = ops.clip(y, *self._steps.stages[-1].activation.bounds)
        return y

    def _meet(self, features, y, weights, affine):
        z = self._steps.coordinates(features, y, weights, affine)
        return self._steps.meetings(
            features, z, y, weights, affine, curvature=self._given["order"] == 2
        )

    def _sums(self, meetings, rows, clipped):
        """Per layer: sums in the shapes of its weights, then those of
        second order if there are."""
        found = []
        for index, (stage, meeting) in enumerate(
            zip(self._steps.stages, meetings)
        ):
            bounds = {1: None, 2: None}
            if clipped:
                bounds = {
                    n: t and t[index] for n, t in self._thresholds.items()
                }
            first = coefficient_sums.first_order(
                stage, meeting, rows, bounds[1]
            )
            second = None
            if self._given["order"] == 2:
                second = coefficient_sums.second_order(
                    stage, meeting, rows, bounds[2]
                )
            found.append((first, second))
        return found

    def _exact(self, meetings, rows):
        total = layer_stack.total(rows)
        found = []
        for first, second in self._sums(meetings, rows, clipped=False):
            first = [values / total for values in replicas.total(first)]
            if second is not None:
                (second,) = replicas.total([second])
                first = coefficient_sums.newton_direction(
                    first, second / total, 0.0, self._given["damping"]
                )
            found.append(first)
        return found

    def _released(self, meetings, rows):
        """Noisy clipped sums over the expected batch size, and what follows
        from them. All that leaves a private step comes from here."""
        sums, scales, mirrored = [], [], []
        both = self._sums(meetings, rows, clipped=True)
        for index, (first, second) in enumerate(both):
            sums += first
            scales += [self._thresholds[1][index]] * len(first)
            mirrored += [False] * len(first)
            if second is not None:
                sums.append(second)
                scales.append(self._thresholds[2][index])
                mirrored.append(True)
        scales = [self.sensitivity * scale for scale in scales]
        noisy = self._noise.release(sums, scales, mirrored)
        found = []
        for index, (first, second) in enumerate(both):
            first, noisy = noisy[: len(first)], noisy[len(first) :]
            if second is not None:
                noise = (
                    self.noise_multiplier
                    * self.sensitivity
                    * self._thresholds[2][index]
                    / self.expected_batch_size
                )
                first = coefficient_sums.newton_direction(
                    first, noisy[0], noise, self._given["damping"]
                )
                noisy = noisy[1:]
            found.append(first)
        return found

    def _surrogate(self, coefficients):
        total = 0.0
        for layer, found in zip(self.private_layers, coefficients):
            for weight, coefficient in zip(weights_of(layer), found):
                weight = ops.convert_to_tensor(weight)
                coefficient = ops.stop_gradient(coefficient)
                total = total + ops.sum(
                    ops.cast(coefficient, weight.dtype) * weight
                )
        return total

    # Looking at records: private -----------------------------------------

    def coefficient_norms(self, x, y=None):
        """Norms of every record's coefficients, before clipping.

        They are private: thresholds chosen by them must be released (a
        noisy histogram, Algorithm 2 of the paper) or come from public data.

        Args:
            x: records, `(n, *input_shape)`.
            y: as in `fit`.

        Returns:
            NumPy array `(n, P)` in the order of `partitions`.
        """
        found = []
        for start in range(0, len(x), _BATCH):
            part = slice(start, start + _BATCH)
            labels = None if y is None else y[part]
            meetings, _ = self._observe(x[part], labels)
            columns = []
            for stage, meeting in zip(self._steps.stages, meetings):
                columns.append(coefficient_sums.first_norms(stage, meeting))
                if self._given["order"] == 2:
                    columns.append(
                        coefficient_sums.second_norms(stage, meeting)
                    )
            found.append(
                np.stack([ops.convert_to_numpy(c) for c in columns], axis=1)
            )
        return np.concatenate(found)

    def coefficient_sums(self, x, y=None, sample_weight=None, clipped=True):
        """Sums of the coefficients over given records, without noise.

        They are private; a training step releases them with noise.

        Args:
            x, y, sample_weight: as in `fit`, one batch.
            clipped: whether each record is clipped to the thresholds.

        Returns:
            list with one list of NumPy arrays for each partition: kernel
            and bias, or `(units, m, m)` of second order.
        """
        meetings, features = self._observe(x, y)
        rows = coefficient_sums.weights_of_rows(
            sample_weight, features, clipped
        )
        found = []
        for first, second in self._sums(meetings, rows, clipped):
            found.append([ops.convert_to_numpy(v) for v in first])
            if second is not None:
                found.append([ops.convert_to_numpy(second)])
        return found

    def _observe(self, x, y):
        """The meetings of one batch, and its features."""
        if isinstance(y, (list, tuple)):
            y = np.asarray(y)
        features = self._features(x)
        y = self._targets(y, features)
        weights = self._steps.weights()
        affine = self._steps.forward(features, weights)
        return self._meet(features, y, weights, affine), features

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


def _thresholds(name, value, count):
    """One float for each layer, or `None`: they come from elsewhere."""
    if value is None or (isinstance(value, str) and value in _LEARNED):
        return None
    if isinstance(value, (str, dict)):
        raise ValueError(
            f"`{name}` must be a number greater than 0, one for each of the "
            f'{count} trained layers, "histogram" or "analytic". Received: '
            f"{name}={value!r}"
        )
    values = np.ravel(value).tolist()
    if np.ndim(value) == 0:
        values = values * count
    if len(values) != count:
        raise ValueError(
            f"`{name}` must be one number or one for each of the {count} "
            f"trained layers. Received: {name}={value}"
        )
    return [checks.norm_bound(name, v) for v in values]


def _check_orders(order, clip, curvature_clip):
    if clip is None:
        raise ValueError(
            "`clip` must be a number greater than 0, one for each trained "
            'layer, "histogram" or "analytic". Received: clip=None'
        )
    wanted = order == 2 and not isinstance(clip, str)
    if wanted != (curvature_clip is not None):
        raise ValueError(
            "`curvature_clip` is needed with `order=2` and thresholds that "
            "are numbers, and not otherwise. Received: "
            f"curvature_clip={curvature_clip}, order={order}, clip={clip!r}"
        )
