"""A network of Keras layers as a function of records, in which every layer
that is trained can be met.

The graph may branch and join (residual networks, several towers). Every layer
of it is either trained, with known coefficients of single records, or known to
treat records one by one; all others are refused by name.
"""

import dataclasses
from collections.abc import Callable

import keras

from keras_fm.parts.model_graph import nodes
from keras_fm.public import activations
from keras_fm.stacks import layer_stack, passages, row_masks, trained_layers
from keras_fm.stacks.stages import Stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Call:
    """One layer's call in the graph.

    Attributes:
        passage: a function of what the layer is called with, or `None`.
        stage: the `Stage` that reads what the passage gives, or `None`.
        mask: the `RowMask` of a layer that acts in a training step only.
        args, kwargs: what the layer is called with, symbolic.
        output: its symbolic output.
    """

    args: list
    output: keras.KerasTensor
    kwargs: dict = dataclasses.field(default_factory=dict)
    passage: Callable | None = None
    stage: Stage | None = None
    mask: row_masks.RowMask | None = None


class RecordGraph:
    """What layers make of features, record by record.

    Args:
        layers: a list of layers, or a functional model of one input and one
            output; models among them are their own layers.
        features: symbolic tensor.
        views: int, rows of a batch that are one record.

    Attributes:
        stages: list of `Stage`, the trained layers, the last one's last.
        outputs: symbolic, of the layers themselves.

    Raises:
        ValueError: if a layer is not known to treat records one by one, or
            its coefficients are not; it is named.
    """

    def __init__(self, layers, features, views=1):
        self.stages, self._calls, self._views = [], [], views
        self._features = features
        self.outputs = self._apply(layers, features)
        last = self._calls[-1] if self._calls else None
        if (
            last is None
            or type(last.stage and last.stage.layer) is not keras.layers.Dense
            or len(self.outputs.shape) != 2
            or last.output is not self.outputs
        ):
            raise ValueError(
                "`layers` must end with a `keras.layers.Dense` that gives "
                f"logits. Received: layers={layers}"
            )

    # Reading the graph -----------------------------------------------------

    def _apply(self, layers, features):
        if isinstance(layers, list):
            for layer in layers:
                features = self._call(layer, [features], {})
            return features
        given = [tuple(tensor.shape[1:]) for tensor in layers.inputs]
        if given != [tuple(features.shape[1:])] or len(layers.outputs) != 1:
            raise ValueError(
                "`layers` must be of one output and of one input, of the "
                f"shape {tuple(features.shape[1:])}. Received: {layers.name} "
                f"of {len(layers.outputs)} outputs, inputs of {given}"
            )
        values = {id(layers.inputs[0]): features}
        for node in nodes(layers):
            if not node.is_input:
                args, kwargs = node.arguments.fill_in(values)
                values[id(node.outputs[0])] = self._call(
                    node.operation, list(args), kwargs
                )
        return values[id(layers.outputs[0])]

    def _call(self, layer, args, kwargs):
        if type(layer) is keras.Sequential or is_network(layer):
            inner = layer if is_network(layer) else list(layer.layers)
            return self._apply(inner, keras.tree.flatten([args, kwargs])[0])
        trained = trained_layers.learns(layer)
        masked = type(layer) in row_masks.KINDS
        if not trained and not masked:
            passage = passages.of_operation(layer, args, kwargs)
        layer_stack.check_layer(layer, trained and layer in self._trained)
        output = layer(*args, **kwargs)
        if trained:
            self._learn(layer, args, kwargs, output)
            return output
        if masked:
            # Keras, too, asks nobody but `fit` whether it is in training.
            args, kwargs = keras.tree.flatten([args, kwargs])[:1], {}
            more = {"mask": row_masks.RowMask(layer, args[0].shape[1:])}
        else:
            more = {"passage": passage}
        self._calls.append(
            _Call(args=args, kwargs=kwargs, output=output, **more)
        )
        return output

    @property
    def _trained(self):
        return [stage.layer for stage in self.stages]

    def _learn(self, layer, args, kwargs, output):
        """A stage for each map of a layer, one after the other."""
        # Whatever name it was given by, and whether in training or not.
        known, maps = trained_layers.parts_of(layer, args, kwargs, self._views)
        for made in maps:
            given, activation = output, activations.get("linear")
            if made is not maps[-1]:
                given = keras.KerasTensor((None, *made.output_shape))
            elif hasattr(layer, "activation"):
                activation = layer_stack.activation_of(layer)
            stage = Stage(map=made, activation=activation)
            self.stages.append(stage)
            args = [known[k] for k in getattr(made, "reads", (-1,))]
            passage = getattr(made, "passage", None)
            self._calls.append(
                _Call(
                    passage=passage and passage(args),
                    stage=stage,
                    args=args,
                    output=given,
                )
            )
            known = [*known, given]

    # Running it ------------------------------------------------------------

    @property
    def has_masks(self):
        """Whether a training step draws random numbers for its rows."""
        return any(call.mask is not None for call in self._calls)

    def draw_masks(self, rows, noise=None):
        """The numbers of one training step; see `RowMask.draw`."""
        masks = [call.mask for call in self._calls if call.mask is not None]
        return [mask.draw(rows, noise) for mask in masks]

    def run(self, features, weights, taps, masks=None):
        """The last layer's affine outputs, and what every trained layer reads.

        Args:
            features: `(n, ...)`.
            weights: of every stage, as `Stack.weights` gives them.
            taps: of every stage but the last, what is added to its affine
                outputs.
            masks: as `draw_masks` gives them, or `None`: as in a prediction.

        Returns:
            a tensor, and a list of tensors.
        """
        values, read = {id(self._features): features}, []
        masks = None if masks is None else iter(masks)

        def known(value):
            if isinstance(value, keras.KerasTensor):
                return values[id(value)]
            return value

        for call in self._calls:
            args, kwargs = keras.tree.map_structure(
                known, [call.args, call.kwargs]
            )
            if call.passage is None:
                (z,) = args
            else:
                z = call.passage(*args, **kwargs)
            if call.stage is not None:
                index = len(read)
                read.append(call.stage.read(z))
                z = call.stage.map.forward(read[-1], weights[index])
                if index == len(self.stages) - 1:
                    return z, read
                z = call.stage.activation.value(z + taps[index])
            if call.mask is not None and masks is not None:
                z = call.mask.apply(z, next(masks))
            values[id(call.output)] = z
        raise AssertionError("a graph ends with a trained layer")


def is_network(layers):
    """Whether this is a functional model, and not a list of layers."""
    # Subclasses may do anything in `call`.
    kind = type(layers)
    return kind.__name__ == "Functional" and kind.__module__.startswith(
        "keras."
    )
