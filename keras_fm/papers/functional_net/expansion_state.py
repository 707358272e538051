import keras
import numpy as np
from keras import ops

from keras_fm.core.private_part import ReleasedLayer
from keras_fm.core.released import stored_arrays


@keras.saving.register_keras_serializable(package="keras_fm")
class ExpansionState(ReleasedLayer):
    """Holds the Taylor expansion of a `FunctionalNet`.

    Before a release it holds the weights that the objective is expanded
    about, after one the released quadratic (its curvatures and minimiser).
    Both are saved with the model; neither holds the noise by itself.

    The layer returns its inputs. In training under a proven release it
    returns zeros, so that metrics do not show how well the model fits the
    private records.

    Example:

    >>> ExpansionState().is_released
    False
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        # Hidden from Keras: the weights belong to the network's layers.
        self.__dict__["_describes"] = []
        # Counts changes that a compiled step does not see.
        self.generation = 0

    def call(self, inputs, training=None):
        training = self.in_training(training)
        if self._released is None or self.published:
            return inputs
        # No record may move the weights, in any training loop.
        return ops.zeros_like(inputs) if training else ops.stop_gradient(inputs)

    def compute_output_shape(self, input_shape):
        return input_shape

    # The point -----------------------------------------------------------

    def set_point(self, weights):
        """Sets the weights that the objective is expanded about.

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

    trains_on_release = True

    def describe(self, weights):
        """Sets which weights of the network a release describes."""
        self.__dict__["_describes"] = list(weights)

    def described_weights(self):
        return self._describes

    def _is_whole(self):
        return self._has_hidden("minimiser_0")

    def released_objective(self):
        return self.released_loss(self.described_weights())

    def set_release(self, curvatures, minimiser, published, ledger_json):
        """Makes the layer train on a released quadratic, not on records.

        Args:
            curvatures, minimiser: lists of arrays in the shapes of the
                weights, the curvatures greater than 0.
            published: whether the release has no proof.
            ledger_json: str, kept with the layer when it is saved.
        """
        self.check_no_twin()
        largest = max(float(np.max(h)) for h in curvatures)
        for index, (h, value) in enumerate(zip(curvatures, minimiser)):
            self._set_hidden(f"curvature_{index}", np.asarray(h) / largest)
            self._set_hidden(f"minimiser_{index}", np.asarray(value))
        self.mark_released(ledger_json, bool(published))
        self.generation += 1

    def minimiser(self):
        """Weights at the minimum of the released quadratic, as arrays."""
        return [ops.convert_to_numpy(v) for v in self._listed("minimiser")]

    def released_loss(self, weights):
        """`1/2 sum h (w - minimiser)^2`: the released quadratic above its
        minimum, scaled so that the largest h is 1.

        Args:
            weights: list of tensors.
        """
        total = 0.0
        for w, h, lowest in zip(
            weights, self._listed("curvature"), self._listed("minimiser")
        ):
            h, lowest = (ops.convert_to_tensor(v) for v in (h, lowest))
            w = ops.cast(ops.convert_to_tensor(w), h.dtype)
            total = total + ops.sum(h * ops.square(w - lowest)) / 2
        return total

    # Saving --------------------------------------------------------------

    def _release_arrays(self):
        return {
            f"{kind}_{index}": ops.convert_to_numpy(value)
            for kind in ("curvature", "minimiser")
            for index, value in enumerate(self._listed(kind))
        }

    def save_own_variables(self, store):
        super().save_own_variables(store)
        for index, value in enumerate(self._listed("point")):
            store[f"point_{index}"] = ops.convert_to_numpy(value)
        store["published"] = np.array(self.published)

    def _arrays_of(self, store, *kinds):
        """Arrays read from a file, in the shapes of the weights."""
        shapes = {
            f"{kind}_{index}": point.shape
            for kind in kinds
            for index, point in enumerate(self._listed("point"))
        }
        return stored_arrays(self.name, store, shapes)

    def _take_release_arrays(self, arrays):
        found = self._arrays_of(arrays, "curvature", "minimiser")
        for name, value in found.items():
            self._set_hidden(name, value)

    def load_own_variables(self, store):
        point = self._arrays_of(store, "point")
        self._load_carried(store, bool(np.asarray(store["published"])))
        for name, value in point.items():
            self._set_hidden(name, value)
        self.generation += 1
