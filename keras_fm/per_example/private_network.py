"""Trains any Keras model on noisy sums of the records' clipped gradients."""

import dataclasses
import math

import keras
import numpy as np

from keras_fm.core import fit_contract, full_precision, place, replicas, sealed
from keras_fm.core.record_alone import Attributes
from keras_fm.kernel import checks
from keras_fm.kernel.budget import warn_of_delta
from keras_fm.kernel.compose import compose_epsilon
from keras_fm.kernel.ledger.ledger_entry import check_line
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example import (
    ghost_layers,
    given_records,
    mended,
    past_weights,
    poisson_samples,
    record_map,
    step_failure,
    sum_noise,
)
from keras_fm.per_example.affine_maps import squared_length
from keras_fm.per_example.charged_bar import ChargedBar
from keras_fm.per_example.fit_charge import (
    FitCharge,
    chosen_of,
    number_of_classes,
    number_of_records,
    owners_of,
)
from keras_fm.per_example.given_records import GivenRecords, numbered
from keras_fm.per_example.given_stream import GivenStream, is_stream
from keras_fm.per_example.owner_rows import OwnerLoss
from keras_fm.per_example.participation import Participation
from keras_fm.per_example.poisson_samples import FACTORS, KEYS, RECORDS
from keras_fm.per_example.step_query import LayerCoefficientsQuery

_LENGTHS = "length of the noisy mean gradient"
_OWN_STEPS = ("train_step", "compute_loss", "make_train_function")


def make_private(
    model,
    *,
    clip=None,
    physical_batch_size=None,
    rows_per_owner=None,
    classes=None,
    start="untrained",
    public=None,
    fix=False,
):
    """Wraps `model` so that `fit` trains every layer with privacy.

    Each step of `fit` is a step of DP-SGD. It draws a Poisson sample, which
    each record joins independently, and computes each record's gradient from
    that record alone. It clips the gradients (limits their L2 norms), sums them
    and adds Gaussian noise. The layers and weights stay those of `model`, so
    `model` is trained too.

    Args:
        model: a Keras model: sequential, functional or subclassed.
        clip: `None`, or a float > 0. With `None` the gradient of a record is
            divided by its L2 norm (Bu et al. 2023), and no clip needs tuning.
            With a float, longer gradients are scaled back to that norm.
        physical_batch_size: `None`, or int, the number of records in memory at
            a time. It changes neither noise nor accounting.
        rows_per_owner: `None`, or int, public: the most rows of one person
            (owner) in a step. Set it to protect people with several rows,
            together with `fit(..., owners=ids)`. If a person has more rows,
            every step draws this many at random.
        classes: `None`, or a public list of the labels' names, in the order of
            the outputs: `["no", "yes"]`.
        start: `"untrained"`: you declare that the first weights are random.
            Models that took steps are refused.
        public: `None`, or str, instead of `start`: the public data that the
            first weights were trained on (`"ImageNet"`). The privacy statement
            repeats it as your declaration.
        fix: `True` copies a sequential or functional model, replaces layers
            that mix records, and trains the copy. `changes` lists the
            replacements.

    Returns:
        A `PrivateNetwork`. Compile and fit it with
        `keras_fm.callbacks.PrivateModel`.

    Raises:
        ValueError: if the model mixes the records of a batch, has its own
            training step, or was trained before.

    Example:

    ```python
    private = keras_fm.make_private(model)
    private.compile("sgd", "sparse_categorical_crossentropy")
    private.fit(
        x,
        y,
        batch_size=256,
        epochs=10,
        callbacks=[keras_fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)],
    )
    model.save("mine.keras")
    ```

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016; Bu
    et al., "Automatic Clipping", 2023.
    """
    if start != "untrained":
        raise ValueError(
            '`start` must be "untrained". For weights that were trained on '
            "public data, name the data: `make_private(model, "
            f'public="ImageNet")`. Received: start={start!r}'
        )
    changes = []
    if fix:
        model, changes = mended.copy_of(model)
    return PrivateNetwork(
        model,
        clip=clip,
        physical_batch_size=physical_batch_size,
        rows_per_owner=rows_per_owner,
        classes=classes,
        public=public,
        changes=changes,
    )


class PrivateNetwork(keras.Model):
    """The model that `keras_fm.make_private` returns.

    Attributes:
        model: the plain Keras model, to save, share or use further.
        changes: list of str, the layers that `fix=True` replaced.
    """

    makes_private_steps = True
    # Whether the noise of its steps may be correlated.
    correlates = True
    step_proof = "docs/proofs/record_alone.md, docs/proofs/mechanisms.md"
    # Whether the loss of a record is being computed.
    _alone = False
    # Whether XLA compiles a step that takes record after record.
    may_jit = False

    def __init__(
        self,
        model,
        *,
        clip=None,
        physical_batch_size=None,
        rows_per_owner=None,
        classes=None,
        public=None,
        changes=(),
        **kwargs,
    ):
        super().__init__(**kwargs)
        mended.check(model)
        _check_own_steps(model)
        self.model, self.changes = model, list(changes)
        self.clip = checks.optional(checks.norm_bound, "clip", clip)
        self.physical = checks.optional(
            checks.count, "physical_batch_size", physical_batch_size
        )
        self.rows_per_owner = checks.optional(
            checks.count, "rows_per_owner", rows_per_owner
        )
        self.classes = _checked_classes(classes)
        if public is None:
            past_weights.check_untrained(model)
        else:
            check_line("`public`", public)
        # The declared public source of the first weights, or `None`.
        self.declared_public = public
        self._fit = self._digest = self._iterations = None
        # The optimizer of the last fit, and the weights it changed.
        self._moved = ((), ())
        # Lengths of the released noisy means. A metric, since only metrics
        # leave a compiled step on all backends.
        self.lengths = keras.metrics.Mean(name=_LENGTHS)

    def compile(self, *args, jit_compile="auto", **kwargs):
        """As `keras.Model.compile`."""
        # Keras compiles nothing under a strategy.
        self.may_jit = (
            jit_compile == "auto"
            and replicas.of_strategy(self)[0] == 1
            and ghost_layers.xla_compiles(self.model)
        )
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self._means = _takes_means(self.loss, replicas.of_strategy(self)[0])

    # Calls ---------------------------------------------------------------

    def build(self, input_shape=None):
        self.built = True

    def call(self, inputs, training=None):
        if not poisson_samples.are_drawn(inputs):
            if training:
                raise ValueError(
                    "A private network supports `fit` only. To run "
                    f"'{self.model.name}' itself, call `private.model`."
                )
            return self.model(inputs, training=False)
        if training:
            # The step gets its records in `compute_loss`.
            return ops.zeros((1,))
        records = inputs[RECORDS]
        if self.rows_per_owner is not None:
            records = keras.tree.map_structure(lambda v: v[:, 0], records[0])
        return self.model(records, training=False)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        if not poisson_samples.are_drawn(x):
            return super().compute_loss(x, y, y_pred, sample_weight)
        return self._fit.loss(x, y)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if not poisson_samples.are_drawn(x):
            return super().compute_metrics(x, y, y_pred, sample_weight)
        # Metrics of the sample are not protected.
        return {"charged": ops.convert_to_tensor(self._fit.charged, "float32")}

    def get_metrics_result(self):
        found = sealed.results(self)
        found.pop(_LENGTHS, None)
        return found

    @property
    def losses(self):
        # For a single record, the map adds the losses of its layers.
        return [] if self._alone else super().losses

    def loss_of_records(self, y, y_pred, weights=None):
        """The compiled loss, without the losses that layers add."""
        if self.loss is None:
            return ops.zeros(())
        self._alone = True
        try:
            found = super().compute_loss(None, y, y_pred, weights)
        finally:
            self._alone = False
        # No other replica has a part of a single record.
        return found * replicas.sharing_means() if self._means else found

    def weight_penalties(self):
        """Regularizers of weights."""
        return sum(
            (
                ops.cast(v.regularizer(v), "float32")
                for v in self.model.trainable_variables
                if v.regularizer is not None
            ),
            ops.zeros(()),
        )

    # Training ------------------------------------------------------------

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        owners=None,
        participation=None,
        **kwargs,
    ):
        """Trains as `keras.Model.fit` does, on Poisson samples that it draws.

        `batch_size` is the expected size of a sample; a data set or loader
        brings its own. An epoch has `ceil(n / batch_size)` steps, or
        `steps_per_epoch`. A record's weight multiplies its clipped gradient.
        `class_weight="balanced"` releases noisy class counts, for a twentieth
        of the fit's budget, and weighs classes by them; a dict is public.
        `validation_data` is not protected.

        `owners` protects people instead of rows: one id for each row, with
        `make_private(rows_per_owner=8)`. `batch_size` is then the expected
        number of people. If rows have several owners, ids are `(n, k)`, filled
        up with -1 (text ids with ""). Then `fit` chooses rows so that every
        owner has at most one; the choice depends on the ids alone.

        `participation=keras_fm.Participation()` draws no samples. Every record
        is used once an epoch, in a fixed order (drawn once, unless
        `shuffle=False`), with correlated noise. For one epoch x may be a data
        set, loader or generator of any length: rows are read once and not kept,
        and `steps_per_epoch` is the number of steps.
        `participation=keras_fm.BallsInBins()` puts every record into one random
        step of each epoch.
        """
        if validation_split:
            raise ValueError(
                "`validation_split` would show metrics of private records. "
                "Give `validation_data=` of records that need no protection, "
                "or measure with `keras_fm.evaluation`. Received: "
                f"validation_split={validation_split}"
            )
        if not self.compiled:
            raise ValueError(
                "Compile the private model first: "
                '`private.compile("sgd", "sparse_categorical_crossentropy")`.'
            )
        steps_per_epoch = checks.optional(
            checks.count, "steps_per_epoch", steps_per_epoch
        )
        callback = _callback_of(callbacks)
        if owners is not None:
            callback.protect(owners)
        fit_contract.check_monitors(
            keras.tree.flatten(callbacks), released=False
        )
        self.check_guarantee(callback.guarantee)
        fit_contract.check_loss(self.model, self.loss)
        ordered = isinstance(participation, Participation)
        if ordered and epochs - initial_epoch == 1 and is_stream(x):
            needs_arrays = class_weight, chosen_of(callback.guarantee)
            given = self._stream(
                x, y, sample_weight, batch_size, steps_per_epoch, needs_arrays
            )
            steps_per_epoch, shuffle = None, False
        else:
            given = GivenRecords(x, y, sample_weight, batch_size, self.classes)
        given_records.warn_of_missing(given)
        if not self.model.built:
            x = keras.tree.map_structure(lambda v: v[:1], _made_up(given)[0])
            self.model(x)
        # On TensorFlow nothing is called before a backup is loaded.
        self.built = True
        self._check_past(callback.ledger)
        if isinstance(validation_data, tuple):
            validation_data = self._numbered(*validation_data)
        if self.rows_per_owner is not None:
            given.own(owners_of(callback.guarantee), self.rows_per_owner)
        weighed = given.weights is not None
        self.check_labels(given.y)
        balanced = _balances(class_weight)
        if class_weight is not None and not balanced:
            given.weigh(class_weight, self.classes)
        private = given.x if given.y is None else (given.x, given.y)
        fit_contract.check_held_out(
            validation_data, private, name="x of this fit"
        )
        if isinstance(validation_data, tuple):
            # What cannot be evaluated must fail before the charge.
            x, y, weights = keras.utils.unpack_x_y_sample_weight(
                keras.tree.map_structure(
                    lambda v: None if v is None else v[:32], validation_data
                )
            )
            super().evaluate(x, y, sample_weight=weights, verbose=0)
        if chosen_of(callback.guarantee) is not None:
            given.choose(callback.guarantee.unit)
        of_rows = "weights of rows: each a function of its row, by declaration"
        notes = ["weights of classes: released"] * balanced
        if class_weight and not balanced:
            notes.append("weights of classes: public, by declaration")
        notes += [of_rows] * weighed + _of_validation(validation_data)
        try:
            with Attributes(self.model):
                fit = PrivateFit(
                    self,
                    given,
                    callback,
                    epochs - initial_epoch,
                    steps_per_epoch,
                    balanced,
                    participation,
                    shuffle,
                )
                self._fit, fit.notes = fit, notes
                if not isinstance(callbacks, keras.callbacks.CallbackList):
                    # Replaces the progress bar of Keras.
                    callbacks = [
                        *keras.tree.flatten(callbacks),
                        ChargedBar(fit),
                    ]
                found = super().fit(
                    fit.samples,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation_data,
                    initial_epoch=initial_epoch,
                    shuffle=False,
                    **kwargs,
                )
            # Callbacks may set weights when training ends.
            self.note_weights()
            return found
        finally:
            self._fit = None

    def _stream(self, x, y, sample_weight, batch_size, steps, needs_arrays):
        """The data of `fit`, as rows that are read once."""
        given_records.check_alone(y, sample_weight, x)
        needs_arrays = (*needs_arrays, self.rows_per_owner)
        if any(v is not None for v in needs_arrays):
            raise ValueError(
                "`class_weight` and `owners` need arrays: rows of a stream "
                "are not known before the first step."
            )
        given = GivenStream(x, batch_size, steps, self.classes)
        given.watch(self.check_labels)
        return given

    def evaluate(self, x=None, y=None, **kwargs):
        """As `keras.Model.evaluate`. Its results on private records are not
        protected."""
        if self._fit is None:
            x, y = self._numbered(x, y)
        else:
            # Validation resets all metrics.
            self._fit.note_length()
        return super().evaluate(x, y, **kwargs)

    def _numbered(self, x, y=None, *more):
        """Validation data with class names replaced by numbers."""
        if self.classes is not None and y is not None:
            y = numbered(y, self.classes)
        return (x, y, *more)

    @full_precision.scope()
    def train_step(self, *args, **kwargs):
        return super().train_step(*args, **kwargs)

    def make_train_function(self, force=False):
        made = super().make_train_function(force=force)
        self.train_function = step_failure.without_records(
            self.train_function, self.name
        )
        return made

    def train_on_batch(self, *args, **kwargs):
        raise ValueError(
            "`train_on_batch` cannot draw the samples that privacy is "
            "accounted for. Use `fit`."
        )

    def step_numbers(self):
        """Steps that the running fit took, and public numbers by name."""
        fit = self._fit
        return (0, {}) if fit is None else (fit.taken, fit.numbers())

    def note_lengths(self, pairs):
        """Notes the length of a step's release, inside the step."""
        squares = [
            squared_length(ops.cast(v, "float32")[None]) for _, v in pairs
        ]
        self.lengths.update_state(ops.stop_gradient(ops.sqrt(sum(squares))))

    def noise_length(self, mechanism, expected):
        """Expected length of the noise in a release; `None` if it is not known.

        Args:
            mechanism: that of the ledger's entry.
            expected: expected number of records.
        """
        size = sum(math.prod(v.shape) for v in self.model.trainable_variables)
        scale = (self.clip or 1.0) / expected
        return mechanism.stddev * scale * math.sqrt(size)

    # What a step uses of the records -------------------------------------

    @property
    def step_query(self):
        """The query of a step: what it releases, in units of the clip."""
        return LayerCoefficientsQuery(thresholds=(self.clip or 1.0,))

    @property
    def step_uses(self):
        """What a step uses of the records, in words."""
        if self.clip is None:
            return "gradients of records, each divided by its norm"
        return f"gradients of records, each clipped to the norm {self.clip:g}"

    def map_for(self, given, example):
        """The map of records, see `record_map.RecordMap`.

        Args:
            given: the `GivenRecords` of a fit.
            example: `(x, y)` of made-up records.
        """
        trainer = self
        if given.owners is not None:
            trainer = OwnerLoss(self)
        elif self.loss is not None:
            record_map.check_rows(self, example)
        return record_map.chosen_for(
            trainer, self.clip, example, self.physical, given.batch_size
        )

    def noisy_sums(self, made, sums, keys, mechanism, expected):
        """The release of a step: pairs of a variable and its direction.

        Args:
            made: the map from `map_for`.
            sums: list of tensors, the output of the map.
            keys: those of the batch.
            mechanism: that of the ledger's entry.
            expected: expected number of records.
        """
        noisy = sum_noise.noisy(mechanism, sums, keys)
        scale = (self.clip or 1.0) / expected
        return [(v, value * scale) for v, value in zip(made.learned, noisy)]

    def released_first(self, ledger, spends):
        """The fit's releases before the first step: a list of
        `ReleasedFirst`."""
        return []

    def check_records(self, given):
        """Refuses records on which a step would fail."""

    def check_guarantee(self, guarantee):
        """Refuses what noisy steps do not promise."""
        if guarantee.kind != "proven":
            raise ValueError(
                "`make_private` always trains with a proof. Leave `guarantee` "
                f"out. Received: guarantee={guarantee.kind!r}"
            )
        check_proven(guarantee, self.rows_per_owner)

    def check_labels(self, y):
        """Refuses labels without an output: a step would fail on them."""
        loss = self.loss
        name = loss if isinstance(loss, str) else type(loss).__name__
        outputs = getattr(self.model, "outputs", None) or ()
        if (
            "sparse" not in str(name).lower()
            or not isinstance(y, np.ndarray)
            or len(outputs) != 1
        ):
            return
        classes = outputs[0].shape[-1]
        known = (y >= 0) & (y < (classes or 0))
        known |= y == getattr(loss, "ignore_class", None)
        if classes and not np.all(known):
            raise ValueError(
                f"`y` must hold whole numbers from 0 to {classes - 1}, one for "
                f"each of the {classes} outputs of '{self.model.name}'."
            )

    # A fit's ledger --------------------------------------------------------

    def plan_private_fit(
        self,
        callback,
        x,
        batch_size,
        epochs,
        first=(),
        class_weight=None,
        participation=None,
    ):
        """The text of `PrivateModel.plan`, after the checks of `fit`.

        Args:
            callback, x, batch_size, epochs: arguments of `plan`.
            first: entries of releases before the steps.
            class_weight, participation: arguments of the coming `fit`.
        """
        self.check_guarantee(callback.guarantee)
        if x is None or not self.model.built:
            raise ValueError(
                "A plan needs a built model and the records, or how many "
                "there are: `plan(private, 60_000, batch_size=256, epochs=10)`."
            )
        self._check_past(callback.ledger)
        n, size = number_of_records(x, callback, batch_size)
        classes = number_of_classes(self) if _balances(class_weight) else None
        charge = FitCharge(
            self,
            callback,
            n,
            size,
            epochs,
            classes=classes,
            participation=participation,
        )
        return charge.table(first)

    def begin_private_fit(self, callback, plan=None):
        """Charges the steps of the running fit to the ledger.

        Args:
            callback: the `PrivateModel` of the fit.
            plan: `None`, or a function of x that plans the releases of layers
                below, before the steps.
        """
        if self._fit is None:
            raise ValueError("A private network supports `fit` only.")
        return self._fit.begin(callback, plan)

    def save(self, filepath, **kwargs):
        """Saves the plain, trained model."""
        self.model.save(filepath, **kwargs)

    def export(self, filepath, **kwargs):
        """Exports the plain, trained model."""
        self.model.export(filepath, **kwargs)

    def save_weights(self, filepath, **kwargs):
        """Saves the weights of the plain model."""
        self.model.save_weights(filepath, **kwargs)

    def load_weights(self, filepath, **kwargs):
        """Loads weights into the plain model."""
        self.model.load_weights(filepath, **kwargs)

    @property
    def statement_line(self):
        """`None`, or which weights came out of the last private fit."""
        if self._digest is None:
            return None
        return (
            f"Weights of '{self.model.name}' after the private fit: sha256 "
            f"{self._digest}. Other weights are not covered."
        )

    def check_weights(self):
        """Refuses weights that came from no private fit."""
        if self._digest != past_weights.digest(self.model):
            raise ValueError(
                f"'{self.model.name}' does not have the weights of a private "
                "fit: it was not fitted yet, or its weights were changed "
                "later. No statement covers them."
            )

    def note_weights(self):
        """Keeps a digest of the weights for the statement."""
        self._digest = past_weights.note_weights(self.model)
        self._iterations = past_weights.steps_of(self.optimizer)
        learned = [id(v) for v in self.model.trainable_variables]
        self._moved = (self.optimizer, learned)

    def _check_past(self, ledger):
        """Refuses weights and optimizers that this ledger does not know."""
        public = self.declared_public is not None
        past_weights.check(self.model, ledger, public, self._digest)
        optimizer = getattr(self, "optimizer", None)
        if past_weights.steps_of(optimizer) not in (0, self._iterations):
            raise ValueError(
                "The optimizer was used outside of a private fit: its momenta "
                "may hold private records. Compile with a new one."
            )

        learned = [id(v) for v in self.model.trainable_variables]
        if not learned:
            raise ValueError(
                f"'{self.model.name}' has no trainable weights. Set "
                "`layer.trainable = True` on the layers that are to learn."
            )
        if self._moved[0] is optimizer and self._moved[1] != learned:
            raise ValueError(
                f"The trainable layers of '{self.model.name}' changed after "
                "the private model was compiled. Compile it again: "
                "`private.compile(...)`."
            )

    def get_config(self):
        raise NotImplementedError(
            "A private network has no config. Save or clone the plain model "
            "that it trains, `private.model`."
        )


class PrivateFit:
    """One fit: its samples, its entry in the ledger, and its step.

    Args:
        network: a `PrivateNetwork`.
        given: the `GivenRecords`.
        callback: the `PrivateModel` of the fit.
        epochs, steps_per_epoch: ints, as `fit` was given; or `None`.
        balanced: bool, whether classes are weighed by their released counts.
        participation: `None`, a `Participation`, or `BallsInBins()`.
        shuffle: bool, whether the order of a `Participation` is drawn.
    """

    def __init__(
        self,
        network,
        given,
        callback,
        epochs,
        steps_per_epoch=None,
        balanced=False,
        participation=None,
        shuffle=True,
    ):
        self._network, self._callback = network, callback
        self._given = given
        example = _made_up(given)
        if given.owners is not None:
            example = _of_owners(given, example)
        # Trial calls leave nothing in the layers.
        with Attributes(network.model), full_precision.scope():
            self.map = network.map_for(given, example)
        if network.may_jit:
            network.jit_compile = self.map.needs_xla
        self._charge = FitCharge(
            network,
            callback,
            given.n,
            given.batch_size,
            epochs,
            steps_per_epoch,
            number_of_classes(network) if balanced else None,
            participation,
        )
        self._correlated, self._shuffle = self._charge.correlated, shuffle
        self._plan = self._charge.plan
        parts = replicas.parts_of_batch(network)
        # The noise takes words of two rows, be they padding.
        rows = max(self._plan.capacity, 2 * parts)
        self._rows = rows = rows + -rows % parts
        kind, more = poisson_samples.PoissonSamples, {}
        if self._charge.bins:
            kind = poisson_samples.BinnedSamples
            more["taken"] = lambda: self.taken
        if self._correlated is not None:
            kind = poisson_samples.OrderedSamples
            more["bands"] = self._correlated.bands
            more["shuffle"] = bool(shuffle)
            more["taken"] = lambda: self.taken
        self.samples = kind(
            given,
            self._plan,
            rows,
            self.map.key_shape,
            record_map.KEY_DTYPE,
            seed=callback.known_seed,
            per_epoch=self._charge.per_epoch,
            **more,
        )
        self._mechanism, self.charged, self.notes = None, 0.0, []
        self.taken, self.steps, self._length = 0, self._plan.steps, None

    # Charging ------------------------------------------------------------

    def begin(self, callback, plan=None):
        """Charges all steps, and the releases before them, before the first."""
        if callback is not self._callback:
            raise ValueError(
                "`fit` must be given one `PrivateModel` callback, in "
                "`callbacks=`."
            )
        place.check(self._network)
        given, ledger = self._given, callback.ledger
        warn_of_delta(ledger.budget.delta, self._plan.n)
        noise, charge = NoiseSource(callback.known_seed), self._charge
        below = None if plan is None else plan(given.x)
        first = [] if below is None else below.entries()
        charge.others += [entry.build_mechanism() for entry in first]
        first += charge.released_first(noise)
        entry = charge.entry(self.notes, self._shuffle)
        ledger.check([*first, entry])
        self._network.check_records(given)
        if below is not None:
            below.carry_out()
        for one in charge.first:
            one.learn(given, noise)
        # A clip is known by now.
        entry = charge.entry(self.notes, self._shuffle)
        ledger.charge([entry])
        past_weights.note_charge(self._network.model, ledger)
        self.charged = ledger.epsilon()
        self._mechanism = entry.build_mechanism()
        # A step traced before holds other noise, or none. JAX would reuse the
        # trace of an equal function, and bound methods of one network are
        # equal.
        network = self._network
        network.train_step = lambda *a: type(network).train_step(network, *a)
        network.make_train_function(force=True)
        return self

    # For the callback -----------------------------------------------------

    def end_batches(self):
        left = self._charge.per_epoch - self.taken % self._charge.per_epoch
        self.taken += min(int(self._network.steps_per_execution), left)

    def note_length(self):
        """Notes the epoch's released lengths before the metrics are reset."""
        lengths = self._network.lengths
        if float(ops.convert_to_numpy(lengths.count)):
            self._length = float(ops.convert_to_numpy(lengths.result()))

    def numbers(self):
        """Public numbers of the steps so far, by name."""
        if not self.taken:
            return {}
        self.note_length()
        share = self.taken / self.steps
        found = {"privacy/steps taken of those paid for": share}
        if (epsilon := self._epsilon_so_far()) is not None:
            found["privacy/epsilon, if the stop had been fixed beforehand"] = (
                epsilon
            )
        noise = self._network.noise_length(
            self._mechanism, self._plan.expected_batch_size
        )
        if noise is not None and self._length is not None:
            if self._correlated is not None:
                noise *= math.hypot(*self._correlated.weights)
            found["step/length of the noisy mean gradient"] = self._length
            found["step/length of the noise in it, expected"] = noise
        return found

    def _epsilon_so_far(self):
        """The ledger's epsilon if only the steps taken so far had been
        charged."""
        ledger = self._callback.ledger
        if not math.isfinite(ledger.epsilon()):
            return None
        found = [e.build_mechanism() for e in ledger.entries]
        found.remove(self._mechanism)
        budget = ledger.budget
        return compose_epsilon(
            [*found, self._so_far()], budget.delta, scale=budget.epsilon
        )

    def _so_far(self):
        """The mechanism of the steps taken so far."""
        mechanism, correlated = self._mechanism, self._correlated
        if correlated is None:
            return dataclasses.replace(mechanism, steps=self.taken)
        part = dataclasses.replace(correlated, steps=self.taken).sensitivity
        part /= correlated.sensitivity
        return dataclasses.replace(
            mechanism,
            sensitivity=mechanism.sensitivity * part,
            noise_multiplier=mechanism.noise_multiplier / part,
        )

    # A step --------------------------------------------------------------

    def loss(self, x, y):
        """A loss whose gradient is the noisy mean of clipped gradients."""
        if self._mechanism is None:
            raise ValueError(
                "A private step cannot run before its ledger is charged. Give "
                "`fit` the callback `keras_fm.callbacks.PrivateModel`."
            )
        # One shape, even if a trace does not know the number of rows.
        rows, y = self._rows // replicas.in_step(), () if y is None else y
        x, y = keras.tree.map_structure(
            lambda v: keras.ops.reshape(v, (rows, *v.shape[1:])), (x, y)
        )
        keys = of_noise = x[KEYS]
        if self._correlated is not None:
            keys, of_noise = sum_noise.keys_of_steps(
                keys, self._correlated.weights
            )
        noisy = self._network.noisy_sums(
            self.map,
            self.map.sums(x[RECORDS], y, keys, x[FACTORS]),
            of_noise,
            self._mechanism,
            self._plan.expected_batch_size,
        )
        self._network.note_lengths(noisy)
        total = self._network.weight_penalties() + surrogate(noisy)
        return replicas.share(total)


def surrogate(pairs):
    """A loss whose gradients are the given directions.

    Args:
        pairs: list of pairs of a variable and a tensor.
    """
    total = ops.zeros(())
    for variable, value in pairs:
        weight = ops.convert_to_tensor(variable)
        value = ops.stop_gradient(ops.cast(value, weight.dtype))
        total = total + ops.cast(ops.sum(value * weight), "float32")
    return total


def _made_up(given):
    """Three made-up records with the shapes and types of the given ones."""
    rng = np.random.default_rng(0)

    def of(array):
        shape = (3, *array.shape[1:])
        if array.dtype.kind == "f":
            return rng.uniform(0, 1, shape).astype(array.dtype)
        if array.dtype.kind in "biu":
            return (np.arange(math.prod(shape)).reshape(shape) % 2).astype(
                array.dtype
            )
        return np.full(shape, "a", dtype=array.dtype)

    x = keras.tree.map_structure(of, given.x)
    y = () if given.y is None else keras.tree.map_structure(of, given.y)
    return x, y


def _of_owners(given, example):
    """Three made-up owners, with rows."""
    x, y = keras.tree.map_structure(
        lambda v: np.repeat(v[:, None], given.owners.most, axis=1), example
    )
    return (x, np.ones((3, given.owners.most), "float32")), y


def _callback_of(callbacks):
    found = [
        c
        for c in keras.tree.flatten(callbacks)
        if getattr(c, "makes_private", False)
    ]
    if len(found) != 1:
        raise ValueError(
            "`fit` of a private network needs one budget: `callbacks=["
            "keras_fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)]`. "
            f"Received: {len(found)} such callbacks"
        )
    return found[0]


def _checked_classes(classes):
    if classes is None:
        return None
    found = list(classes)
    if len(found) < 2 or len(set(found)) < len(found):
        raise ValueError(
            "`classes` must be a list of at least two different labels. "
            f"Received: classes={classes}"
        )
    return found


def check_proven(guarantee, rows_per_owner):
    """Refuses what noisy steps do not promise."""
    plain = (
        not guarantee.unit.reach
        and guarantee.n_public
        and guarantee.releases == 1
        and guarantee.neighbours != "replace_label"
    )
    if not plain:
        raise ValueError(
            "Of `Proven(...)`, `make_private` takes only `neighbours`, "
            "`spends` and `unit=Unit(owners=ids)`: the number of rows or "
            "owners is public, and a fit is one release."
        )
    shape = np.shape(guarantee.unit.owners)
    if (len(shape) == 1) != (rows_per_owner is not None):
        raise ValueError(
            "`rows_per_owner` and `owners` must be given together: "
            "`make_private(model, rows_per_owner=8)`, a public number, and "
            "`fit(..., owners=ids)`. For `plan`, give the ids to "
            "`PrivateModel(..., guarantee=Proven(unit=Unit(owners=ids)))`. "
            "If rows have several owners, leave `rows_per_owner` out: steps "
            "use at most one row of each. Received: rows_per_owner="
            f"{rows_per_owner}, owners.shape={shape}"
        )


def _takes_means(losses, count):
    """Whether losses are means over a batch, which Keras divides by the
    replicas, or sums."""
    kinds = {
        getattr(loss, "reduction", "mean") in ("sum", "none", None)
        for loss in keras.tree.flatten(losses)
        if loss is not None
    }
    if count > 1 and len(kinds) > 1:
        raise ValueError(
            "On several replicas all losses of a private model must have one "
            "reduction: give each of them "
            '`reduction="sum_over_batch_size"`, or each `reduction="sum"`.'
        )
    return kinds == {False}


def _balances(class_weight):
    return isinstance(class_weight, str) and class_weight == "balanced"


def _of_validation(data):
    """The statement's sentence on validation data."""
    if data is None:
        return []
    arrays = isinstance(data, (tuple, list))
    rows = f"{len(keras.tree.flatten(data)[0]):,} rows" if arrays else "data"
    return [f"validation: {rows}, not protected"]


def _check_own_steps(model):
    for name in _OWN_STEPS:
        own = getattr(type(model), name, None)
        if own is not getattr(keras.Model, name) or name in vars(model):
            raise ValueError(
                f"'{model.name}' ({type(model).__name__}) has its own "
                f"`{name}`, and a private step does not run it. Leave it out; "
                "losses belong in `compile` or `add_loss`."
            )
