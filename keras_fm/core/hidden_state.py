"""State that takes part in training but is not one of a layer's weights."""

import inspect
import secrets

import keras
from keras import ops

from keras_fm.core.configured_layer import ConfiguredLayer

_STATE_TREE = ("get_state_tree", "set_state_tree")


class HiddenVariable(keras.Variable):
    """A non-trainable variable whose values never show in a repr."""

    def __init__(self, value, **kwargs):
        super().__init__(value, trainable=False, autocast=False, **kwargs)

    def __repr__(self):
        return f"<HiddenVariable shape={tuple(self.shape)}>"

    __str__ = __repr__


def _is_written():
    """Whether Keras asks for variables to write them to a file: an exported
    program, or the state tree that checkpoints hold."""
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module.startswith("keras.") and (
            ".export" in module or frame.f_code.co_name in _STATE_TREE
        ):
            return True
        frame = frame.f_back
    return False


class _Box:
    # A plain object: Keras and TensorFlow track variables, lists and dicts
    # set as attributes of a layer, and would save and log what they track.
    def __init__(self):
        self.variables = {}
        self.seed = None

    def __repr__(self):
        return f"<hidden {sorted(self.variables)}>"

    def __deepcopy__(self, memo):
        return _Box()

    def __reduce__(self):
        return (_Box, ())


class HiddenStateLayer(ConfiguredLayer):
    """A layer with state kept out of `weights`.

    Compiled steps of TensorFlow and PyTorch find hidden variables by
    themselves. On JAX they are part of `variables`, the state that its steps
    carry. They are not in `weights`, so `get_weights`, saved files and
    TensorBoard histograms do not hold them (a subclass may save what is safe
    in `save_own_variables`). Exports and `get_state_tree`, which take all
    variables, do not hold them either.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._hidden = _Box()

    @property
    def variables(self):
        found = super().variables
        if keras.backend.backend() != "jax" or _is_written():
            return found
        return found + list(self._hidden.variables.values())

    def _set_hidden(self, name, value):
        """Creates or overwrites the hidden variable `name`."""
        known = self._hidden.variables.get(name)
        if known is not None and tuple(known.shape) == tuple(value.shape):
            known.assign(value)
            return
        self._hidden.variables[name] = HiddenVariable(
            value, dtype=self.variable_dtype, name=name
        )

    def _make_counter(self, name):
        """Creates a counter that all replicas of a step increment once."""
        self._hidden.variables[name] = HiddenVariable(
            0, dtype="int", aggregation="only_first_replica", name=name
        )

    def _set_hidden_seed(self, name):
        """Creates a random stream seeded by the operating system, whose
        state is as hidden as the noise drawn from it."""
        seed = keras.random.SeedGenerator(secrets.randbits(31))
        drawn = ops.convert_to_numpy(seed.state)
        seed.state = HiddenVariable(drawn, dtype=seed.state.dtype, name=name)
        self._hidden.variables[name] = seed.state
        self._hidden.seed = seed

    def _draw_laplace(self, name):
        """A fresh Laplace draw with the scales in `name`."""
        scale = self._get_hidden(name)
        # The inverse distribution function; never exactly at its poles.
        u = keras.random.uniform(
            scale.shape, -0.5, 0.5, dtype="float32", seed=self._hidden.seed
        )
        tail = ops.maximum(1.0 - 2.0 * ops.abs(u), 1e-7)
        return -ops.sign(u) * ops.log(tail) * ops.cast(scale, "float32")

    def _get_hidden(self, name):
        return self._hidden.variables[name]

    def _has_hidden(self, name):
        return name in self._hidden.variables
