"""The one promise of every private layer and model.

A private part trains in one of three ways: on its release (proven), under
noise that was fixed before (published), or without any protection if you set
`unprotected=True`. Otherwise it refuses to train: if it was never released, was
copied, cloned or loaded from a file without its release, or has weights that
its release does not describe.
"""

import dataclasses

import keras
import numpy as np
from keras import ops
from keras.src.backend.common import global_state

from keras_fm.core import fit_frame, sealed, variable_values
from keras_fm.core.hidden_state import HiddenStateLayer
from keras_fm.core.released import (
    Claims,
    Released,
    digest,
    store_ledger,
    stored_ledger,
    stored_steps,
)
from keras_fm.kernel import checks


class PrivatePart:
    """A private layer or model: what it holds, and when it may train.

    A subclass with weights from a release names them in `described_weights`.
    One that trains on a released objective returns it from
    `released_objective`. It states its releases by `release_names`,
    `default_shares` and `planned_releases` (proven) or `claims` (published),
    see `keras_fm.core.planned_release`.
    """

    # Set by the user: the part trains on records without protection.
    unprotected = False
    # In a layer that carries the state of a model: returns that model. Keras
    # would follow a plain attribute when it saves.
    _owner = None

    def owner(self):
        """The model whose state this layer carries, or `None`."""
        return None if self._owner is None else self._owner()

    # Why no proof covers it, and what to write instead; `None` if one does.
    unproven: str | None = None

    def _carrier(self):
        return self

    def pictures(self):
        """Pictures of a release for TensorBoard: from names to functions that
        write a PNG to a file."""
        return {}

    def split_share(self):
        """How the output part divides its share over its releases."""
        count = len(self.release_names())
        return [1 / count] * count

    def check_labels_alone(self):
        """Refuses `neighbours="replace_label"`, under which features are
        public. Parts with a proof for this relation override it.

        Raises:
            ValueError: saying what to write instead.
        """
        raise ValueError(
            f"{type(self).__name__} '{self.name}' has no proof for "
            'neighbours="replace_label", under which labels are secret and '
            "features are public. Only a PrivateDense without `rounds` on "
            'public features has one. Write neighbours="replace_one", which '
            "protects the whole record with its label."
        )

    # The state of a part -------------------------------------------------

    @property
    def released(self):
        """The `Released` of this part, or `None`.

        Weights that it does not describe remove it for good.
        """
        return self._carrier()._verified()

    @property
    def is_released(self):
        """Whether the part has a release, and its weights come from it."""
        return self.released is not None

    @property
    def ledger_json(self):
        """The ledger of the release, or `None`."""
        released = self.released
        return None if released is None else released.ledger_json

    @property
    def is_perturbed(self):
        """Whether noise (published form) was fixed."""
        return False

    # Training ------------------------------------------------------------

    def check_trains(self):
        """Refuses to train without protection.

        Raises:
            ValueError: saying what to write instead.
        """
        if self.unprotected or self.is_perturbed or self.is_released:
            return
        raise ValueError(self._refusal())

    def _refusal(self):
        # The part that the user built, not the layer that carries its state.
        part = self.owner() or self
        kind = type(part).__name__
        lost = ""
        if self._carrier()._lost:
            lost = (
                " It was released, but its weights are no longer those of the "
                "release (other weights were loaded or set)."
            )
        return (
            f"{kind} '{part.name}' has no release, so training it would use "
            f"the records unprotected.{lost} {part._how_it_trains()} A "
            f"non-private twin is built with `{kind}(..., unprotected=True)`."
        )

    def _how_it_trains(self):
        """The end of a refusal to train: what to write instead."""
        return (
            "Give fit `callbacks=["
            "keras_fm.callbacks.PrivateModel(epsilon=1.0, delta=1e-5, "
            "data=(x, y))]`, or load a model that was saved with its release "
            "(.keras or .weights.h5; other formats and copies lose it)."
        )

    def in_training(self, training):
        """Begins a part's `call`.

        Args:
            training: as given to `call`; `None` if it was not given. Then it
                is `True` in a step of a Keras model that trains the part,
                because the model's own `call` may not pass it on.

        Returns:
            bool, whether this is a training call.

        Raises:
            ValueError: if it is one and must not be, see `check_trains`.
        """
        if training is None:
            training = self.trainable and fit_frame.is_trained(self)
        if training:
            self.enter_training()
        return bool(training)

    def enter_training(self):
        """The first thing that a part's `call` does in training."""
        carrier, model = self._carrier(), self._trainer()
        if carrier._released is None:
            if self.unprotected or self.is_perturbed:
                return
            variable_values.give_back(model)
            raise ValueError(self._refusal())
        try:
            if carrier._verified(model) is None:
                raise ValueError(self._refusal())
            if not self.trains_on_release:
                return
            if model is not None and not carrier._released.published:
                sealed.seal_running(model, self)
        except ValueError:
            variable_values.give_back(model)
            raise
        if carrier._has_hidden("steps"):
            steps = carrier._get_hidden("steps")
            steps.assign_add(ops.ones((), steps.dtype))

    def _trainer(self):
        """The Keras model whose step calls the part, or `None`."""
        if isinstance(self, keras.Model):
            return self
        # A stateless step calls the layers of its model one by one, and the
        # first to be entered may be a model inside it.
        outermost = fit_frame.stateless_model()
        if outermost is not None:
            return outermost
        # Not by the layer: it would begin a call where there is none.
        context = global_state.get_global_attribute("current_call_ctx")
        entry = getattr(context, "entry_layer", None)
        return entry if isinstance(entry, keras.Model) else None

    # Whether its weights train on a released objective.
    trains_on_release = False

    def public_fact(self):
        """Where the weights of a part below the output come from."""
        return f"weights of layer '{self.name}': from its own release"

    def released_objective(self):
        """The released objective at the current weights, a scalar tensor."""
        raise NotImplementedError

    def note_weights(self):
        """Notes that the release describes the weights as they are now,
        because training on it led to them."""
        carrier = self._carrier()
        if carrier._verified() is not None:
            carrier._note()


class ReleasedLayer(PrivatePart, HiddenStateLayer):
    """A layer that carries a release: its own, or that of its model.

    Args:
        unprotected: `True` for the non-private twin, which trains on records
            without noise and can never be released.
    """

    def __init__(self, unprotected=False, **kwargs):
        super().__init__(**kwargs)
        self.unprotected = checks.boolean("unprotected", unprotected)
        self._released = None
        # Whether a release was taken away.
        self._lost = False
        # A plain object: Keras would track a dict.
        self.__dict__["_claims"] = Claims()

    @property
    def published(self):
        """Whether the release is of the published form."""
        return self._released is not None and self._released.published

    @property
    def claims_made(self):
        """The `Claims` that the layer ever trained under, in this model or in
        a file that its weights come from."""
        return self._claims

    def described_weights(self):
        """The weights that a release describes."""
        return self.weights

    # Published: fixed noise ----------------------------------------------

    # Names of the hidden variables for the noise of a published form.
    noise_names: tuple = ()

    @property
    def is_perturbed(self):
        return any(self._has_hidden(name) for name in self.noise_names)

    def fix_noise(self, per_step=False, **noise):
        """Fixes noise, which must be divided by the lot already.

        Args:
            per_step: whether `noise` holds scales for draws at every step.
            **noise: arrays by `noise_names`.
        """
        for name, value in noise.items():
            self._set_hidden(name, np.asarray(value))
        if per_step:
            self._set_hidden_seed("seed_state")

    def noise_now(self, name):
        """The noise of a training step, a tensor."""
        if self._has_hidden("seed_state"):
            return self._draw_laplace(name)
        return self._get_hidden(name)

    def check_no_twin(self):
        """Refuses a release of the non-private twin.

        Raises:
            ValueError: if the layer is one.
        """
        if self.unprotected:
            part = self.owner() or self
            raise ValueError(
                f"{type(part).__name__} '{part.name}' was built with "
                "`unprotected=True`: the non-private twin is never released. "
                "Build a new model without it."
            )

    def mark_released(self, ledger_json, published=False):
        """Notes the ledger of the release that the weights come from.

        Raises:
            ValueError: if the layer is the non-private twin.
        """
        self.check_no_twin()
        if self.trains_on_release and not self._has_hidden("steps"):
            self._make_counter("steps")
        self._released = Released(
            ledger_json=ledger_json, digest=b"", published=published
        )
        self._lost = False
        self._note()

    # The weights that a release describes --------------------------------

    # Counts the steps that may have moved these weights.
    _counter = "steps"

    def _digest(self, model=None):
        found = variable_values.values(self.described_weights(), model)
        return None if found is None else digest(found)

    def _steps(self, model=None):
        if not self._has_hidden(self._counter):
            return 0
        found = variable_values.values([self._get_hidden(self._counter)], model)
        return None if found is None else int(found[0])

    def _note(self, model=None):
        found, steps = self._digest(model), self._steps(model)
        if found is not None and steps is not None:
            self._released = dataclasses.replace(
                self._released, digest=found, steps=steps
            )

    def _verified(self, model=None):
        """The release, which is removed if it does not describe the weights."""
        if self._released is None:
            return None
        if not self._is_whole():
            self.forget_release()
            return None
        found, steps = self._digest(model), self._steps(model)
        if found is None or steps is None:
            # Inside a compiled step: the check was made before it began.
            return self._released
        if not self._released.digest:
            self._note(model)
        elif found != self._released.digest:
            if steps == self._released.steps:
                self.forget_release()
                return None
            # Training steps on the release were taken since.
            self._note(model)
        return self._released

    def _is_whole(self):
        """Whether the layer holds all of its release. Copies may not."""
        return True

    def forget_release(self):
        """Removes the release, and with it the right to train."""
        self._lost = self._lost or self._released is not None
        self._released = None

    # Saving: a release is safe to save, noise is not ---------------------

    def _release_arrays(self):
        """Dict of the arrays of the release that are saved with it."""
        return {}

    def _take_release_arrays(self, arrays):
        """Takes what `_release_arrays` gave.

        Raises:
            ValueError: if arrays are missing or of other shapes; then nothing
                was changed.
        """

    def save_own_variables(self, store):
        released = self.released
        super().save_own_variables(store)
        self._claims.store(store)
        if released is None:
            return
        for name, value in self._release_arrays().items():
            store[name] = value
        store["digest"] = np.frombuffer(released.digest, np.uint8)
        store["steps"] = np.array(released.steps)
        store_ledger(store, released.ledger_json)

    def load_own_variables(self, store):
        weights = self.weights
        stored = {key for key in store.keys() if key.isdigit()}
        if stored != set(map(str, range(len(weights)))):
            raise ValueError(
                f"Layer '{self.name}' expected {len(weights)} variables, but "
                f"the file holds {sorted(stored)}."
            )
        claims = Claims.stored(store)
        ledger = self._stored_release(store)
        for index, weight in enumerate(weights):
            weight.assign(store[str(index)])
        # Claims of earlier training stay, whatever is loaded over them.
        self._claims.add(claims.texts)
        if ledger is not None:
            self._mark_stored(store, ledger)

    def _mark_stored(self, store, ledger, published=False):
        steps = stored_steps(store)
        self.mark_released(ledger, published)
        if self._has_hidden("steps") and steps is not None:
            self._get_hidden("steps").assign(steps)
            self._note()

    def _load_carried(self, store, published=False):
        """Takes a release of weights in other layers. These may be loaded
        later: the next check compares them with the file."""
        ledger = self._stored_release(store)
        if ledger is None:
            return
        self._mark_stored(store, ledger, published)
        known = b""
        if "digest" in store.keys():
            known = bytes(np.asarray(store["digest"]))
        self._released = dataclasses.replace(self._released, digest=known)

    def _stored_release(self, store):
        """Takes the release of a file. Returns its ledger, or `None` if the
        file has none that describes its weights. Then the layer's earlier
        release is gone."""
        ledger = stored_ledger(store)
        if ledger is not None and self.unprotected:
            raise ValueError(
                f"Layer '{self.name}' was built with `unprotected=True`, and "
                "the file holds a release. Build it without, then load."
            )
        of_own = ledger is not None and self.owner() is None
        if of_own and "digest" in store.keys():
            held = [np.asarray(store[str(i)]) for i in range(len(self.weights))]
            if bytes(np.asarray(store["digest"])) != digest(held):
                ledger = None
        if ledger is None:
            self.forget_release()
        else:
            self._take_release_arrays(store)
        return ledger


def parts_of(model):
    """All private parts of a model, from the inputs upwards, itself included.

    Layers that carry the state of a model are not parts of their own.
    """
    layers = [model, *model._flatten_layers(include_self=False)]
    models = {id(layer) for layer in layers}
    return [
        layer
        for layer in layers
        if isinstance(layer, PrivatePart) and id(layer.owner()) not in models
    ]
