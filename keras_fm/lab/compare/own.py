"""A model of the user's, as the methods of a comparison need it."""

import hashlib
import inspect
import re

import keras
import numpy as np

from keras_fm.core.private_part import parts_of
from keras_fm.lab import script_functions
from keras_fm.lab.baselines import dp_sgd_opacus, tf_keras_twin
from keras_fm.lab.baselines.dp_sgd_training import changing_state, in_a_row
from keras_fm.lab.compare.methods import METHODS
from keras_fm.per_example.private_network import make_private

_ON_THE_BODY = (
    "one_release",
    "rounds",
    "rounds_products",
    "dp_sgd_head",
    "dp_sgd_whitened",
    "dp_sgd_products",
    "jax_privacy_head",
    "opacus_head",
)
_RIVALS = {
    "jax_privacy": ("jax-privacy", changing_state),
    "opacus": (
        "Opacus, to which the model is one module,",
        dp_sgd_opacus.why_not,
    ),
}
_ENDS = (
    keras.layers.Activation,
    keras.layers.InputLayer,
    keras.layers.Softmax,
)


class OwnModel:
    """What a function builds, anew for every run.

    Args:
        build: function that returns a plain Keras model of one input and one
            output; or `path/to/script.py:function`. It may take the shape of
            a record, and the number of classes.
        shape: tuple, of a record.
        classes: int.

    Raises:
        ValueError: if it returns another model.
    """

    def __init__(self, build, shape, classes):
        if isinstance(build, str):
            build = script_functions.load({"model": build})["model"]
        if isinstance(build, keras.Model):
            raise ValueError(
                "`model` must be a function that builds a model, since every "
                "run begins with new weights: `def build(): ...`. Received: "
                f"a {type(build).__name__}"
            )
        self._build, self._given = build, (tuple(shape), classes)
        self._mends, self.changes = False, []
        self.whole(0)

    def whole(self, seed):
        """The model with new weights, as it was built."""
        shape, classes = self._given
        keras.utils.set_random_seed(seed)
        model = self._build(*self._given[: _parameters(self._build)])
        if not isinstance(model, keras.Model) or parts_of(model):
            raise ValueError(
                "The function must return a Keras model without private "
                f"layers. Received: {type(model).__name__}"
            )
        try:
            found = tuple(model(np.zeros((2, *shape), "float32")).shape)
        # Whatever its layers raise.
        except Exception as e:
            raise ValueError(
                f"The model must take records of shape {shape}, and does not: "
                f"{str(e).splitlines()[0]}. To get the shape, let the "
                "function take it: `def build(shape): ...`."
            ) from e
        if found not in {(2, classes), (2, 1 if classes == 2 else classes)}:
            raise ValueError(
                f"The model must have {classes} outputs, one for each "
                f"class{', or one' * (classes == 2)}. Received: outputs of "
                f"shape {found[1:]}. To get both, let the function take them: "
                "`def build(shape, classes): ...`."
            )
        return model

    def for_steps(self, seed):
        """The model as private steps can train it."""
        model = self.whole(seed)
        if self._mends:
            model = make_private(model, fix=True).model
        return model

    def body(self, seed):
        """All that is below the last dense layer, frozen; `None` if that is
        nothing."""
        model = self.whole(seed)
        tensor = _below_head(model)
        if tensor is None:
            return None
        body = keras.Model(model.inputs, tensor, name="body")
        body.trainable = False
        return body if body.weights else None

    def why_not(self, name):
        """Why a method cannot train it, in words; "" if it can."""
        if not METHODS[name].own:
            return "it has a model of its own"
        if name in _ON_THE_BODY:
            if self.body(0) is None:
                return "it shows no layers below one last dense layer"
        elif name == "dp_sgd_fast":
            found = tf_keras_twin.why_not(in_a_row(self.whole(0)))
            if found:
                return f"tensorflow-privacy cannot take {found}"
        elif name == "all_layers":
            return self._why_no_steps()
        elif name in _RIVALS:
            if why := self._why_no_steps():
                return why
            library, why_not = _RIVALS[name]
            if found := why_not(self.for_steps(0), self._given[0]):
                return f"{library} cannot take {found}"
        return ""

    def _why_no_steps(self):
        try:
            make_private(self.whole(0))
        except ValueError as first:
            try:
                made = make_private(self.whole(0), fix=True)
            except ValueError:
                return str(first).splitlines()[0]
            self._mends, self.changes = True, made.changes
        return ""

    def fingerprint(self):
        """What is known of it where nothing is to be trained twice."""
        model = self.whole(0)
        try:
            # Layers are counted in a process, and objects numbered.
            config = re.sub(
                r'_\d+\b|"shared_object_id": \d+', "", model.to_json()
            )
        except NotImplementedError:
            config = ""
        try:
            config += inspect.getsource(inspect.getmodule(self._build))
        except (OSError, TypeError):
            pass
        digest = hashlib.sha256(config.encode())
        for weight in model.get_weights():
            digest.update(np.ascontiguousarray(weight).data)
        return digest.hexdigest()


def _parameters(build):
    """How many arguments a function must be given."""
    return sum(
        p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in inspect.signature(build).parameters.values()
    )


def _below_head(model):
    """The tensor that the last dense layer takes, or `None`."""
    layers = list(getattr(model, "layers", ()))
    while layers and isinstance(layers[-1], _ENDS):
        layers.pop()
    head = layers[-1] if layers else None
    inputs = getattr(model, "inputs", None) or ()
    dense = isinstance(head, keras.layers.Dense)
    if not dense or len(inputs) != 1 or len(head.input.shape) != 2:
        return None
    return None if head.input is inputs[0] else head.input
