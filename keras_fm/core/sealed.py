"""A training step that no record enters and none leaves.

A model whose parts train on released objectives needs no record in its steps.
A sealed step sees zeros in their place. Its loss is the released objective
with the penalties of weights, and it logs nothing else. This holds whatever
was compiled, whatever other layers add, in whatever order callbacks stand.
Evaluation is Keras' own.
"""

import contextlib
import threading

import keras
from keras import ops

from keras_fm.core import (
    batch_statistics,
    fit_contract,
    fit_frame,
    full_precision,
    optimizer_state,
    replicas,
)

_SEAL = "_sealed"
# A digest of what the optimizer remembered when a sealed fit ended.
_LEFT = "_optimizer_left"
OWN_STEPS = (
    "train_step",
    "compute_loss",
    "compute_metrics",
    "compute_loss_and_updates",
    "stateless_compute_loss",
    "make_train_function",
)


class _Running(threading.local):
    # Whether a sealed step runs, and whether its metrics come next.
    step = metrics = False


_running = _Running()


class _Seal:
    # A plain object: Keras would save what it can follow.
    def __init__(self, parts):
        self.parts = parts


def is_sealed(model):
    """Whether steps of this model are sealed."""
    return _SEAL in model.__dict__


def _parts(model):
    return model.__dict__[_SEAL].parts


def seal(model, parts):
    """Seals the training steps of a model from now on.

    Args:
        model: a Keras model.
        parts: its parts with a released objective (`released_objective`); an
            empty list for a fit that trains nothing.
    """
    kind = type(model)

    def compute_loss(
        x=None, y=None, y_pred=None, sample_weight=None, training=None
    ):
        if not (_running.step if training is None else training):
            _running.metrics = False
            return kind.compute_loss(model, x, y, y_pred, sample_weight)
        expect_metrics()
        return objective(model, _parts(model))

    def compute_metrics(x, y, y_pred, sample_weight=None):
        if not takes_metrics():
            return kind.compute_metrics(model, x, y, y_pred, sample_weight)
        return logs(model)

    def train_step(*arguments):
        emptied = without_records(arguments, _rows(model))
        with full_precision.scope(), emptied as arguments:
            return kind.train_step(model, *arguments)

    def make_train_function(force=False):
        # Here, since a step that was compiled before calls no layer.
        for layer in model._flatten_layers():
            if hasattr(layer, "check_trains"):
                layer.check_trains()
        _check_statistics(model)
        _check_fit(model)
        watch(model, _parts(model))
        known = model.__dict__.get(_LEFT)
        if known is not None and fit_frame.arguments(model) is not None:
            # A custom loop may have given it gradients of records.
            optimizer_state.begin(model, known)
        return kind.make_train_function(model, force=force)

    if is_sealed(model):
        model.__dict__[_SEAL].parts = list(parts)
        return
    # Plain attributes, which Keras does not track and save.
    model.__dict__.update(
        compute_loss=compute_loss,
        compute_metrics=compute_metrics,
        get_metrics_result=lambda: results(model),
        train_step=train_step,
        make_train_function=make_train_function,
    )
    model.__dict__[_SEAL] = _Seal(list(parts))


def seal_running(model, part):
    """Seals a model whose step is running, when a part in it notices.

    Raises:
        ValueError: if the model's class has a step of its own, which may have
            read records already, or weights that nothing would train.
    """
    if is_sealed(model):
        if part not in _parts(model):
            _parts(model).append(part)
        return
    own = [name for name in OWN_STEPS if _overrides(type(model), name)]
    if own:
        raise ValueError(
            f"'{model.name}' ({type(model).__name__}) has a released layer "
            f"'{part.name}' and its own `{own[0]}`, which may use records. "
            "Give fit the callback, `keras_fm.callbacks.PrivateModel(...)`: "
            "its steps see zeros in the place of records."
        )
    of_part = {id(v) for v in part.described_weights()}
    others = [v for v in model.trainable_variables if id(v) not in of_part]
    if others:
        raise ValueError(
            f"'{others[0].path}' must not be trainable beside the released "
            f"layer '{part.name}': training it would need the private records "
            "again. Set `trainable = False` on its layer, or compute features "
            "with the released model's `predict`."
        )
    _check_statistics(model)
    _check_fit(model)
    seal(model, [part])
    watch(model, [part])


def _check_statistics(model):
    """Refuses a step that would move statistics of batches."""
    for layer in batch_statistics.learned_by(model):
        raise ValueError(
            f"Layer '{layer.name}' ({type(layer).__name__}) would update its "
            "statistics from records, but steps after a release must not use "
            "records. Set its `trainable = False`, as it was for the release. "
            "If a step has run, the statistics may reveal records: load or "
            "build the model again."
        )


def _check_fit(model):
    """Refuses metrics that the running fit would show of its own records. A
    PrivateModel among its callbacks does so itself."""
    found = fit_frame.arguments(model)
    if found is not None and not any(
        hasattr(c, "makes_private") for c in fit_frame.callbacks(found)
    ):
        fit_contract.check_shown(found, model)


def objective(model, parts):
    """The objective of a sealed step: released objectives and penalties."""
    total = sum(
        ops.cast(part.released_objective(), "float32") for part in parts
    )
    for weight in model.trainable_variables:
        if weight.regularizer is not None:
            total = total + ops.cast(weight.regularizer(weight), "float32")
    return replicas.share(ops.convert_to_tensor(total, dtype="float32"))


def logs(model):
    """The logs of a sealed step: the released objective, 0 without one."""
    tracker = model._loss_tracker
    return {tracker.name: tracker.result()}


def results(model):
    """Results of the metrics that are built. Compiled metrics are built when
    they are first evaluated."""
    found = {}
    for metric in model.metrics:
        if getattr(metric, "built", True):
            value = metric.result()
            named = value if isinstance(value, dict) else {metric.name: value}
            found.update(named)
    return found


def _rows(model):
    """How many rows of zeros a step of a model sees: as many as the model was
    built for, or one. Keras weighs the loss of a step by its rows, and the
    last batch would reveal the number of records."""
    sizes = [tensor.shape[0] for tensor in getattr(model, "inputs", None) or ()]
    return next((size for size in sizes if size is not None), 1)


@contextlib.contextmanager
def without_records(arguments, rows=1):
    """Arguments of `train_step` whose last one, the data, is replaced by
    `rows` rows of zeros. In the context, losses and metrics are those of
    training."""
    *state, data = arguments
    empty = keras.tree.map_structure(
        lambda v: v if v is None else ops.zeros_like(v[:rows]), data
    )
    before, _running.step = _running.step, True
    try:
        yield (*state, empty)
    finally:
        _running.step = before
        _running.metrics = False


def expect_metrics():
    """Notes that the next metrics are those of a training step."""
    _running.metrics = True


def takes_metrics():
    """Whether the metrics that are asked for are those of a training step:
    inside a sealed one, or next after the loss of one sealed midway."""
    found, _running.metrics = _running.step or _running.metrics, False
    return found


def _overrides(kind, name):
    """Whether a class overrides a method of Keras' trainer."""
    found = getattr(kind, name, None)
    return found is not None and found is not getattr(keras.Model, name, None)


class _Watch(keras.callbacks.Callback):
    """Notes the weights that a fit on a release led to."""

    def __init__(self, parts):
        super().__init__()
        self._parts = parts

    def on_train_end(self, logs=None):
        # On JAX, reading `model` brings the weights back into their variables.
        _ = self.model
        for part in self._parts:
            part.note_weights()
        self.model.__dict__[_LEFT] = optimizer_state.left(self.model)


def watch(model, parts):
    """Has the running fit, if any, note the weights of parts at its end."""
    found = fit_frame.callback_list(model)
    if found is not None and not any(
        isinstance(callback, _Watch) for callback in found.callbacks
    ):
        callback = _Watch(parts)
        callback.set_params(found.params)
        callback.set_model(model)
        found.callbacks.append(callback)
