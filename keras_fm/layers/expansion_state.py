import keras
import numpy as np
from keras import ops

from keras_fm.layers.hidden_state import (
    HiddenStateLayer,
    store_ledger,
    stored_ledger,
)


@keras.saving.register_keras_serializable(package="keras_fm")
class ExpansionState(HiddenStateLayer):
    """What the Taylor expansion of a `FunctionalNet` consists of.

    Before a release: the weights that the objective is expanded about.
    After one: the released quadratic, as its curvatures and its minimiser.
    Both are saved with the model; noise alone is in neither.

    The layer returns its inputs; in training under a proven release it
    returns zeros, so that metrics say nothing of how well the model fits the
    private records.

    Example:

    >>> ExpansionState().is_released
    False
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._ledger_json = None
        self._published = False
        self.objective_in_use = False
        self.trained_on_records = False
        # Counts what a step that was compiled before does not know.
        self.generation = 0

    def call(self, inputs, training=False):
        if training and self.is_released and not self._published:
            return ops.zeros_like(inputs)
        return inputs

    def compute_output_shape(self, input_shape):
        return input_shape

    # The point -----------------------------------------------------------

    def set_point(self, weights):
        """Sets what the objective is expanded about.

        Args:
            weights: list of arrays.
        """
        for index, value in enumerate(weights):
            self._set_hidden(f"point_{index}", np.asarray(value))

    def point(self):
        """The weights that the objective is expanded about, as tensors."""
        return self._listed("point")

    def _listed(self, kind):
        found = []
        while self._has_hidden(f"{kind}_{len(found)}"):
            found.append(self._get_hidden(f"{kind}_{len(found)}"))
        return found

    # The release ---------------------------------------------------------

    @property
    def is_released(self):
        """Whether training minimises a released objective."""
        return self._has_hidden("minimiser_0")

    @property
    def published(self):
        """Whether the release is of the published form."""
        return self._published

    @property
    def ledger_json(self):
        """The ledger of the release, or `None`."""
        return self._ledger_json

    def set_release(self, curvatures, minimiser, published, ledger_json):
        """Puts a released quadratic in the place of the data.

        Args:
            curvatures, minimiser: lists of arrays in the shapes of the
                weights, the curvatures greater than 0.
            published: whether the release has no proof.
            ledger_json: str, kept with the layer when it is saved.
        """
        largest = max(float(np.max(h)) for h in curvatures)
        for index, (h, value) in enumerate(zip(curvatures, minimiser)):
            self._set_hidden(f"curvature_{index}", np.asarray(h) / largest)
            self._set_hidden(f"minimiser_{index}", np.asarray(value))
        self._published = bool(published)
        self._ledger_json = ledger_json
        self.generation += 1

    def minimiser(self):
        """Weights at the minimum of the released quadratic, as arrays."""
        return [ops.convert_to_numpy(v) for v in self._listed("minimiser")]

    def released_loss(self, weights):
        """`1/2 sum h (w - minimiser)^2`, the largest h being 1: what the
        released quadratic is above its minimum.

        Args:
            weights: list of tensors.
        """
        self.objective_in_use = True
        total = 0.0
        for w, h, lowest in zip(
            weights, self._listed("curvature"), self._listed("minimiser")
        ):
            h, lowest = (ops.convert_to_tensor(v) for v in (h, lowest))
            w = ops.cast(ops.convert_to_tensor(w), h.dtype)
            total = total + ops.sum(h * ops.square(w - lowest)) / 2
        return total

    # Saving --------------------------------------------------------------

    def save_own_variables(self, store):
        super().save_own_variables(store)
        for kind in ("point", "curvature", "minimiser"):
            for index, value in enumerate(self._listed(kind)):
                store[f"{kind}_{index}"] = ops.convert_to_numpy(value)
        store["published"] = np.array(self._published)
        store["trained_on_records"] = np.array(self.trained_on_records)
        store_ledger(store, self._ledger_json)

    def load_own_variables(self, store):
        ledger = stored_ledger(store)
        known = set(store.keys())
        if self.is_released and "minimiser_0" not in known:
            raise ValueError(
                f"Layer '{self.name}' carries a release, and the file does "
                "not: training would read records again. Load it into a new "
                "model."
            )
        expected = len(self._listed("point"))
        found = {}
        for kind in ("point", "curvature", "minimiser"):
            names = [f"{kind}_{index}" for index in range(expected)]
            if kind == "point" or names[0] in known:
                if not known.issuperset(names):
                    raise ValueError(
                        f"Layer '{self.name}' expected {expected} arrays for "
                        f"{kind!r}, which the file does not hold."
                    )
                found[kind] = {name: np.asarray(store[name]) for name in names}
        for index, value in enumerate(self._listed("point")):
            for arrays in found.values():
                shapes = [tuple(a.shape) for a in arrays.values()]
                if shapes[index] != tuple(value.shape):
                    raise ValueError(
                        f"Layer '{self.name}' expected an array of shape "
                        f"{tuple(value.shape)}. The file holds one of "
                        f"{shapes[index]}."
                    )
        if ("minimiser" in found) != ("curvature" in found) or (
            "minimiser" in found and ledger is None
        ):
            raise ValueError(
                f"The file holds a part of the release of layer '{self.name}'."
            )
        for arrays in found.values():
            for name, value in arrays.items():
                self._set_hidden(name, value)
        self._published = bool(np.asarray(store["published"]))
        self.trained_on_records = bool(np.asarray(store["trained_on_records"]))
        self._ledger_json = ledger
        self.generation += 1
