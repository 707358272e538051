"""A network as a stack of affine maps, and the data of a batch for each."""

import dataclasses

import keras
from keras import ops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One private layer of the stack.

    Attributes:
        map: its affine map.
        activation: the `Activation` after it.
    """

    map: object
    activation: object

    @property
    def layer(self):
        return self.map.layer

    @property
    def weights(self):
        """The variables of the map, in the order of its sums: all variables of
        the layer, or some."""
        return weights_of(self.layer, self.map.names)

    def read(self, z):
        """The output of the stage below, as input of the map."""
        return ops.reshape(z, (-1, *self.map.input_shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meeting:
    """Inputs and derivatives of a batch at one layer, per record.

    Attributes:
        inputs: inputs of the layer, `(n, ...)`.
        delta: derivative of the records' objectives by its affine outputs.
        curvature: second derivatives, or `None` if not needed.
    """

    inputs: object
    delta: object
    curvature: object = None


class Stack:
    """A plain network of stages and the loss above them.

    Args:
        stages: list of `Stage`, from the features upwards.
        loss: of `output_losses`.
    """

    def __init__(self, stages, loss):
        self.stages = stages
        self.loss = loss

    def weights(self):
        """Current weights of every stage, as constants of full precision."""
        return [
            [constant(weight) for weight in stage.weights]
            for stage in self.stages
        ]

    def affine(self, index, z, weights):
        """Affine outputs of layer `index` for the outputs of the one below."""
        stage = self.stages[index]
        return stage.map.forward(stage.read(z), weights[index])

    def forward(self, features, weights):
        """Affine outputs of every layer of the plain network."""
        found, z = [], features
        for index, stage in enumerate(self.stages):
            a = self.affine(index, z, weights)
            found.append(a)
            z = stage.activation.value(a)
        return found


def constant(value):
    """A tensor without gradient, at least float32."""
    tensor = ops.stop_gradient(ops.convert_to_tensor(value))
    if keras.backend.standardize_dtype(tensor.dtype) == "float64":
        return tensor
    return ops.cast(tensor, "float32")


_NAMES = (
    *("depthwise_kernel", "pointwise_kernel", "kernel", "embeddings"),
    *("gamma", "scale", "alpha", "bias", "beta"),
)


def weights_of(layer, names=_NAMES):
    """The variables of a trained layer, in the order of its sums.

    Args:
        layer: the layer.
        names: of variables.
    """
    found = [getattr(layer, name, None) for name in names]
    # `scale` of some layers is a flag.
    return [v for v in found if isinstance(v, keras.Variable)]
