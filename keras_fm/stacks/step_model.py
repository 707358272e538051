"""What models have in common whose every step reads the records.

What a step takes of them goes through the model's `StepNoise`; which steps are
taken, and under what noise, is the ledger's.
"""

import inspect

import keras
from keras import ops

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.parts import (
    fit_contract,
    fit_frame,
    full_precision,
    place,
    replicas,
    sealed,
)
from keras_fm.stacks import step_failure, step_keys, step_release
from keras_fm.stacks.stack_model import StackModel


class StepModel(StackModel):
    """A stack that is trained by noisy steps.

    A subclass has `_noise`, a `StepNoise`, says in `partitions` what a step
    releases, and takes one of made-up records in `_try_step`.
    """

    # Whether Keras is about to run a training step, and not a test.
    _about_to_train = False

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
                units of the sensitivity under add_remove.
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
        mechanism = GaussianMechanism(
            sensitivity=self.step_query().sensitivity(
                "l2", neighbours="add_remove"
            ),
            noise_multiplier=noise_multiplier,
        )
        self.fix_steps(mechanism, expected_batch_size, steps, seed=seed)
        self._noise.allow(steps - self.steps_taken)

    def fix_steps(self, mechanism, expected_batch_size, steps, **more):
        """Fixes the noise of all steps, before the first or to go on; a fit
        with `PrivateModel` does it. Taken are those that it arms. The
        arguments are those of `StepNoise.fix`."""
        if not self.has_thresholds:
            raise ValueError(
                'With clip="histogram" the thresholds are learned first: fit '
                "with `PrivateModel`, or call `learn_thresholds`."
            )
        self._check_place()
        self._noise.fix(mechanism, expected_batch_size, steps, **more)
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
        """Thresholds and all steps, see `step_release`."""
        return step_release.steps(self, reading)

    def paid_entry(self, reading):
        """See `step_release.paid_entry`."""
        return step_release.paid_entry(self, reading)

    def samples_of(self, reading):
        """See `step_release.samples_of`."""
        return step_release.samples_of(self, reading)

    @full_precision.scope()
    def check_batches(self, batches):
        """Refuses steps, places and batches in which no step is right, before
        anything is spent."""
        self._check_steps()
        self._check_place()
        self.check_learning_layers()
        try:
            self._try_step()
        except Exception as e:
            raise ValueError(
                f"A step of '{self.name}' on made-up records stops, and so "
                f"would one that was paid for: {e}"
            ) from e
        step_release.check_parts(self, batches)

    def check_learning_layers(self):
        """Refuses layers whose gradients of single records are not known; they
        may have changed since the model was built."""

    def top_shares(self, left):
        """How what is left of the budget is split over the releases."""
        return step_release.top_shares(self, left)

    def check_labels(self, y, n):
        """Refuses labels that no output is for."""
        if y is not None and self.needs_labels:
            bounds_lib.check_labels(y, self.output_shape[-1])

    def _check_steps(self):
        # Subclasses may do anything in a step.
        own = [name for name in sealed.OWN_STEPS if name in vars(self)]
        if own or not type(self).__module__.startswith("keras_fm."):
            kind = next(
                k.__name__
                for k in type(self).__mro__
                if k.__module__.startswith("keras_fm.")
            )
            what = f"has its own `{own[0]}`" if own else "is a class of its own"
            raise ValueError(
                f"'{self.name}' ({type(self).__name__}) {what}, whose steps "
                "may use records unprotected. Train a "
                f"`keras_fm.models.{kind}` itself."
            )

    def _check_place(self):
        place.check(self)
        count, _ = replicas.of_strategy(self)
        if count > 1 and not self._noise.is_mirrored:
            raise ValueError(
                "The model was built outside the strategy that it is trained "
                "under, so its replicas would not count one step together. "
                "Build and compile it under `strategy.scope()`. Received: "
                f"{count} replicas"
            )
        if count > 1 and self.draws_masks:
            raise ValueError(
                "Replicas would draw the same masks (Dropout and its kin), so "
                "those of two records could be one. Train on one device, or "
                f"without such layers. Received: {count} replicas"
            )

    @property
    def draws_masks(self):
        """Whether a step draws random numbers for every row."""
        return False

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
        # Armed by a fit that another one runs in.
        if noise.armed_by is not None and not self._is_of(noise.armed_by):
            noise.disarm()
        if not noise.may_step:
            noise.refuse_step()
        self._check_place()

    def _is_of(self, callback):
        found = fit_frame.callback_list(self)
        return found is not None and callback in found.callbacks

    # Keras' training -----------------------------------------------------

    def fit(self, *args, **kwargs):
        """As `keras.Model.fit`. However it ends, noisy steps end with it.

        Raises:
            ValueError: of a private model, on weights of records or classes.
        """
        if not self.unprotected:
            # Keras would refuse them first, beside the weights of
            # `PoissonBatches`, which nobody gave.
            given = inspect.signature(super().fit).bind(*args, **kwargs)
            fit_contract.check_unweighted(given.arguments)
        try:
            return super().fit(*args, **kwargs)
        finally:
            if not self.unprotected:
                self._noise.disarm()

    @full_precision.scope()
    def train_step(self, *args):
        *state, data = args
        if not step_keys.are_with(data):
            return super().train_step(*args)
        # On JAX what a step draws would otherwise be in it for good.
        with self._noise.on_batch(data[step_keys.KEY]):
            return super().train_step(*state, data[step_keys.BATCH])

    def call(self, inputs, training=None, mask=None):
        if training and self.is_perturbed:
            # A noisy step takes its records in `compute_loss`, and none here:
            # layers stop at some (tokens outside a table), and show them.
            inputs = keras.tree.map_structure(ops.zeros_like, inputs)
        return super().call(inputs, training=training, mask=mask)

    def make_train_function(self, force=False):
        self.__dict__["_about_to_train"] = True
        made = super().make_train_function(force=force)
        if keras.backend.backend() == "jax":
            self.train_function = step_keys.given_to(
                self.train_function, self._noise
            )
        if not self.unprotected and self.train_function is not None:
            self.train_function = step_failure.without_records(
                self.train_function, self.name
            )
        return made

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
        # A noisy step has the outputs of zeros, whose metrics mean nothing.
        if sealed.takes_metrics():
            return sealed.logs(self)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_metrics_result(self):
        return sealed.results(self)

    # Saving --------------------------------------------------------------

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        thresholds = config.pop("thresholds", None)
        ledger_json = config.pop("thresholds_ledger", None)
        model = super().from_config(config, custom_objects)
        if thresholds is not None:
            model.learn_thresholds(thresholds, ledger_json)
        return model
