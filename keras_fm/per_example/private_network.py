"""Any Keras model, trained by noisy sums of clipped gradients of records."""

import hashlib
import math
import weakref

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.kernel.ledger.ledger_entry import (
    FLOATING_POINT,
    LedgerEntry,
    check_line,
)
from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.kernel.planning import calibration
from keras_fm.kernel.planning.delta_warning import warn_of_delta
from keras_fm.kernel.reads import sampling
from keras_fm.parts import full_precision, place, replicas, sealed
from keras_fm.per_example import (
    kept_attributes,
    mended,
    poisson_samples,
    record_map,
)
from keras_fm.per_example.given_records import GivenRecords
from keras_fm.per_example.poisson_samples import FACTORS, KEYS, RECORDS
from keras_fm.stacks import step_failure, sum_noise
from keras_fm.stacks.layer_coefficients import LayerCoefficientsQuery

# The ledgers that plain models were trained under.
_LEDGERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_OWN_STEPS = ("train_step", "compute_loss", "make_train_function")


def make_private(
    model,
    *,
    clip=None,
    physical_batch_size=None,
    public=None,
    fix=False,
):
    """Makes a model that trains every layer of `model` with privacy.

    A step of its `fit` draws a Poisson sample of the records, computes the
    gradient of each record from that record alone, clips it, and adds
    Gaussian noise to the sum: DP-SGD. The layers and weights stay those of
    `model`, which holds what was learned.

    Args:
        model: a Keras model: sequential, functional or subclassed.
        clip: `None`, or a float > 0. `None`: the gradient of a record is
            divided by its norm (Bu et al. 2023), and no clip needs tuning.
            A float: gradients longer than it are scaled back to it.
        physical_batch_size: `None`, or int: how many records are held in
            memory at a time. It changes neither noise nor accounting.
        public: `None`, or str: what the first weights are from
            (`"ImageNet"`). The statement repeats it as your declaration.
            `None` says that they are random.
        fix: `True` trains a copy of a sequential or functional model in which
            layers that mix records are replaced; `changes` lists them.

    Returns:
        A `PrivateNetwork`. Compile and fit it with
        `keras_fm.callbacks.PrivateModel`.

    Raises:
        ValueError: if the model mixes the records of a batch, has a training
            step of its own, or was trained before.

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
    changes = []
    if fix:
        model, changes = mended.copy_of(model)
    return PrivateNetwork(
        model,
        clip=clip,
        physical_batch_size=physical_batch_size,
        public=public,
        changes=changes,
    )


class PrivateNetwork(keras.Model):
    """What `keras_fm.make_private` returns, which see.

    Attributes:
        model: the plain model: save it, share it, go on with it.
        changes: list of str, what `fix=True` replaced in it.
    """

    # Whether the loss of a record is being computed.
    _alone = False

    def __init__(
        self,
        model,
        *,
        clip=None,
        physical_batch_size=None,
        public=None,
        changes=(),
        **kwargs,
    ):
        super().__init__(**kwargs)
        mended.check(model)
        _check_own_steps(model)
        self.model, self.changes = model, list(changes)
        self._clip = checks.optional(checks.norm_bound, "clip", clip)
        self._physical = checks.optional(
            checks.count, "physical_batch_size", physical_batch_size
        )
        if public is None:
            _check_untrained(model)
        else:
            check_line("`public`", public)
        self._public = public
        self._fit = self._digest = self._iterations = None

    # Calls ---------------------------------------------------------------

    def build(self, input_shape=None):
        self.built = True

    def call(self, inputs, training=None):
        if not poisson_samples.are_drawn(inputs):
            if training:
                raise ValueError(
                    "A private network is trained by `fit` alone. Call "
                    f"`private.model` to run '{self.model.name}' by itself."
                )
            return self.model(inputs, training=False)
        if training:
            # The step takes its records in `compute_loss`.
            return ops.zeros((1,))
        return self.model(inputs[RECORDS], training=False)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        if not poisson_samples.are_drawn(x):
            return super().compute_loss(x, y, y_pred, sample_weight)
        return self._fit.loss(x, y)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if not poisson_samples.are_drawn(x):
            return super().compute_metrics(x, y, y_pred, sample_weight)
        # Those of a sample would tell about its records.
        return {"charged": ops.convert_to_tensor(self._fit.charged, "float32")}

    def get_metrics_result(self):
        return sealed.results(self)

    @property
    def losses(self):
        # Of a record alone the map takes what its layers add.
        return [] if self._alone else super().losses

    def loss_of_records(self, y, y_pred):
        """The compiled loss, without what layers add to it."""
        if self.loss is None:
            return ops.zeros(())
        self._alone = True
        try:
            return super().compute_loss(None, y, y_pred, None)
        finally:
            self._alone = False

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
        **kwargs,
    ):
        """As `keras.Model.fit`, on Poisson samples that it draws itself.

        `batch_size` is the expected size of a sample (of a data set or
        loader: its own). An epoch has as many steps as samples of that size
        are in the records. Weights of records multiply their clipped
        gradients. `validation_data` is not protected.
        """
        del shuffle  # Every sample is drawn anew.
        if validation_split:
            raise ValueError(
                "`validation_split` would show metrics of private records. "
                "Give `validation_data=` of records that need no protection, "
                "or measure with `keras_fm.evaluation`. Received: "
                f"validation_split={validation_split}"
            )
        if steps_per_epoch is not None:
            raise ValueError(
                "`steps_per_epoch` must be left out: an epoch has n / "
                "batch_size samples. Received: steps_per_epoch="
                f"{steps_per_epoch}"
            )
        if not self.compiled:
            raise ValueError(
                "Compile the private model first: "
                '`private.compile("sgd", "sparse_categorical_crossentropy")`.'
            )
        callback = _callback_of(callbacks)
        _check_guarantee(callback.guarantee)
        self._check_past(callback.ledger)
        given = GivenRecords(x, y, sample_weight, batch_size)
        weighed = given.weights is not None
        _check_labels(self, given.y)
        if class_weight is not None:
            given.weigh(class_weight)
        _check_other_rows(given, validation_data)
        fit = PrivateFit(self, given, callback, epochs - initial_epoch)
        fit.notes = [
            *(["weights of classes: public"] if class_weight else []),
            *(
                ["weights of rows: each a function of its row, by declaration"]
                if weighed
                else []
            ),
            *(["validation rows are not protected"] if validation_data else []),
        ]
        self._fit = fit
        try:
            with kept_attributes.kept(self.model):
                found = super().fit(
                    fit.samples,
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=validation_data,
                    initial_epoch=initial_epoch,
                    **kwargs,
                )
            # Callbacks may set weights when training ends.
            self.note_weights()
            return found
        finally:
            self._fit = None

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

    @property
    def declared_public(self):
        """What first weights are from, as it was declared, or `None`."""
        return self._public

    def begin_private_fit(self, callback):
        """Charges the steps of the running fit, for its `PrivateModel`."""
        if self._fit is None:
            raise ValueError("A private network is trained by `fit` alone.")
        return self._fit.begin(callback)

    def save(self, filepath, **kwargs):
        """Saves the plain model, which holds what was learned."""
        self.model.save(filepath, **kwargs)

    @property
    def statement_line(self):
        """`None`, or which weights the last private fit led to."""
        if self._digest is None:
            return None
        return (
            f"Weights of '{self.model.name}' after the private fit: sha256 "
            f"{self._digest}. Other weights are not covered."
        )

    def note_weights(self):
        """Keeps a digest of the weights for the statement."""
        self._digest = _digest(self.model)
        self._iterations = _steps_of(self.optimizer)

    def _check_past(self, ledger):
        """Refuses weights and optimizers that this ledger does not know."""
        if any(known is not ledger for known in _LEDGERS.get(self.model, ())):
            raise ValueError(
                f"'{self.model.name}' was trained with privacy under another "
                "ledger, and what that spent is not in this one. Go on with "
                "the same `PrivateModel`, or build the model anew."
            )
        if self._digest is None and self._public is None:
            _check_untrained(self.model)
        elif self._digest not in (None, _digest(self.model)):
            raise ValueError(
                f"'{self.model.name}' has other weights than its private fit "
                "led to, and no ledger knows on what they were trained. Build "
                "the model anew, or say where they are from: "
                '`make_private(model, public="...")`.'
            )
        if _steps_of(self.optimizer) not in (0, self._iterations):
            raise ValueError(
                "The optimizer took steps that no private fit took: its "
                "momenta may hold private records. Compile with a new one."
            )

    def get_config(self):
        raise NotImplementedError(
            "A private network has no config. Save or clone the plain model "
            "that holds what was learned, `private.model`."
        )


class PrivateFit:
    """One fit: its samples, its entry in the ledger, and its step.

    Args:
        network: a `PrivateNetwork`.
        given: the `GivenRecords`.
        callback: the `PrivateModel` of the fit.
        epochs: int, as `fit` was given.
    """

    def __init__(self, network, given, callback, epochs):
        self._network, self._callback = network, callback
        example = _made_up(given)
        if not network.model.built:
            network.model(keras.tree.map_structure(lambda v: v[:1], example[0]))
        if not network.model.trainable_variables:
            raise ValueError(
                f"'{network.model.name}' has no trainable weights. Set "
                "`layer.trainable = True` on the layers that are to learn."
            )
        self.map = record_map.chosen_for(
            network,
            network._clip,
            example,
            network._physical,
            given.batch_size,
        )
        ledger = callback.ledger
        if ledger.budget.delta <= 0:
            raise ValueError(
                "Noisy steps need delta > 0, far below one over the number of "
                "records: `PrivateModel(epsilon=2.0, delta=1e-5)`. Received: "
                f"delta={ledger.budget.delta:g}"
            )
        full = given.batch_size == given.n
        if not full and str(ledger.neighbours) != "add_remove":
            raise ValueError(
                'Samples are accounted for neighbours="add_remove" only. '
                f"Give `fit` batch_size={given.n}, all rows, or leave "
                f"`neighbours` out. Received: neighbours={ledger.neighbours}"
            )
        self._plan = sampling.plan(
            given.n,
            sampling="full" if full else "poisson",
            batch_size=None if full else given.batch_size,
            steps=epochs * max(1, math.ceil(given.n / given.batch_size)),
            delta=ledger.budget.delta,
            epsilon=ledger.budget.epsilon,
        )
        parts = self.map.piece * replicas.parts_of_batch(network)
        rows = self._plan.capacity
        if rows > self.map.piece:
            rows += -rows % parts
        else:
            rows += -rows % replicas.parts_of_batch(network)
        self._rows = rows
        self.samples = poisson_samples.PoissonSamples(
            given,
            self._plan,
            rows,
            self.map.key_shape,
            record_map.KEY_DTYPE,
            seed=callback.known_seed,
        )
        self._mechanism, self.charged, self.notes = None, 0.0, []
        self._taken = 0

    # Charging ------------------------------------------------------------

    def entry(self):
        """What all steps of the fit are charged as."""
        ledger = self._callback.ledger
        query = LayerCoefficientsQuery(
            thresholds=(self._network._clip or 1.0,), joint=True
        )
        multiplier = sampling.noise_multiplier(
            self._plan,
            ledger.budget,
            neighbours=ledger.neighbours,
            others=self._others(),
        )
        mechanism = self._plan.mechanism(
            multiplier, query.sensitivity("l2", neighbours=ledger.neighbours)
        )
        reads = query.reads
        if self._network._clip is None:
            reads = "gradients of records, each divided by its norm"
        start = self._network._public
        return LedgerEntry(
            name=f"{self._network.model.name} (steps)",
            guarantee="proven",
            neighbours=str(ledger.neighbours),
            mechanism=mechanism.config(),
            reads=reads,
            proof="docs/proofs/record_alone.md, docs/proofs/mechanisms.md",
            private=self._callback.known_seed is None,
            noise=FLOATING_POINT,
            notes=(
                "the number of records n is public by declaration",
                "first weights: random, by declaration"
                if start is None
                else f"first weights: public by declaration: {start}",
                *self.notes,
            ),
        )

    def _others(self):
        """What was released before, and what is left to others."""
        ledger, spends = self._callback.ledger, self._callback.guarantee.spends
        found = [e.build_mechanism() for e in ledger.entries]
        if spends < 1:
            left = calibration.gaussian_share(ledger.budget, 1 - spends)
            found.append(
                GaussianMechanism(sensitivity=1.0, noise_multiplier=left)
            )
        return found

    def begin(self, callback):
        """Charges all steps before the first."""
        if callback is not self._callback:
            raise ValueError(
                "`fit` must be given one `PrivateModel` callback, in "
                "`callbacks=`."
            )
        place.check(self._network)
        entry, ledger = self.entry(), callback.ledger
        warn_of_delta(ledger.budget.delta, self._plan.n)
        ledger.charge([entry])
        _LEDGERS.setdefault(self._network.model, []).append(ledger)
        self._paid = entry
        self.charged = ledger.epsilon()
        self._mechanism = entry.build_mechanism()
        # A step that was traced before holds other noise, or none.
        self._network.make_train_function(force=True)
        self._reserved = 0
        return self

    # What the callback calls ----------------------------------------------

    def begin_batches(self):
        if not self._reserved:
            self._reserved = self.samples.num_batches
            self._callback.ledger.reserve(self._paid, self._reserved)

    def end_batches(self, logs):
        self._taken += int(self._network.steps_per_execution)
        logs["step"] = min(self._taken, self._plan.steps)

    def end_epoch(self):
        if self._reserved:
            self._callback.ledger.confirm(
                self._paid, self._reserved, self._reserved
            )
            self._reserved = 0

    def end(self):
        self.end_epoch()

    # A step --------------------------------------------------------------

    def loss(self, x, y):
        """A loss whose gradient is the noisy mean of clipped gradients."""
        if self._mechanism is None:
            raise ValueError(
                "A private step has no noise before its ledger is charged. "
                "Give `fit` the callback `keras_fm.callbacks.PrivateModel`."
            )
        # One shape, also where the number of rows is not known to a trace.
        rows = self._rows // replicas.in_step()
        x, y = keras.tree.map_structure(
            lambda v: ops.reshape(v, (rows, *v.shape[1:])), (x, y)
        )
        sums = self.map.sums(x[RECORDS], y, x[KEYS], x[FACTORS])
        noisy = sum_noise.noisy(self._mechanism, sums, x[KEYS])
        clip = self._network._clip or 1.0
        scale = clip / self._plan.expected_batch_size
        total = self._network.weight_penalties()
        for variable, value in zip(self.map.learned, noisy):
            weight = ops.cast(ops.convert_to_tensor(variable), "float32")
            total = total + ops.sum(ops.stop_gradient(value) * scale * weight)
        return replicas.share(total)


def _made_up(given):
    """Three records of the shapes and kinds of those that were given."""
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
    y = None if given.y is None else keras.tree.map_structure(of, given.y)
    return x, y


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


def _check_labels(network, y):
    """Refuses labels that no output is for: a step would stop at them."""
    loss = network.loss
    name = loss if isinstance(loss, str) else type(loss).__name__
    outputs = getattr(network.model, "outputs", None) or ()
    if (
        "sparse" not in str(name).lower()
        or not isinstance(y, np.ndarray)
        or len(outputs) != 1
    ):
        return
    classes = outputs[0].shape[-1]
    if classes and not np.all((y >= 0) & (y < classes)):
        raise ValueError(
            f"`y` must hold whole numbers from 0 to {classes - 1}, one for "
            f"each of the {classes} outputs of '{network.model.name}'."
        )


def _check_guarantee(guarantee):
    """Refuses what noisy steps of rows do not promise."""
    if guarantee.kind != "proven":
        raise ValueError(
            "`make_private` trains with a proof. Leave `guarantee` out. "
            f"Received: guarantee={guarantee.kind!r}"
        )
    plain = (
        guarantee.unit.owners is None
        and not guarantee.unit.reach
        and guarantee.n_public
        and guarantee.releases == 1
        and guarantee.neighbours != "replace_label"
    )
    if not plain:
        raise ValueError(
            "`make_private` protects rows whose number is public, in one fit: "
            "of `Proven(...)` it knows `neighbours` and `spends` alone. For "
            "owners train a `keras_fm.models.GradientNet` on "
            "`keras_fm.datasets.PoissonBatches(..., owners=ids)`."
        )


def _check_other_rows(given, validation_data):
    """Refuses to show metrics of the private records themselves."""
    if not isinstance(validation_data, (tuple, list)):
        return
    for one, other in zip(
        keras.tree.flatten(given.x), keras.tree.flatten(validation_data[0])
    ):
        other = np.asarray(other)
        if other.dtype == "float64":
            other = other.astype("float32")
        if one.shape == other.shape and np.array_equal(one, other):
            raise ValueError(
                "`validation_data` holds the private records, whose metrics "
                "would not be protected. Give records that need no "
                "protection, or measure with `keras_fm.evaluation`."
            )


def _check_own_steps(model):
    for name in _OWN_STEPS:
        own = getattr(type(model), name, None)
        if own is not getattr(keras.Model, name) or name in vars(model):
            raise ValueError(
                f"'{model.name}' ({type(model).__name__}) has its own "
                f"`{name}`, which a private step does not run. Leave it out; "
                "losses belong into `compile` or `add_loss`."
            )


def _check_untrained(model):
    steps = _steps_of(getattr(model, "optimizer", None))
    if steps:
        raise ValueError(
            f"'{model.name}' was trained before, for {steps} steps, and no "
            "ledger knows on what. Build it anew, or, if it was trained on "
            'public data, say on which: `make_private(model, public="...")`.'
        )


def _steps_of(optimizer):
    if optimizer is None or not optimizer.built:
        return 0
    return int(ops.convert_to_numpy(optimizer.iterations))


def _digest(model):
    found = hashlib.sha256()
    for weight in model.weights:
        found.update(np.ascontiguousarray(ops.convert_to_numpy(weight)))
    return found.hexdigest()
