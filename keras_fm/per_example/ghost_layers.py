"""Layers whose per-record gradient norms need no gradients.

A layer with input u and derivative d at its output has the gradient sum_p u_p
d_p^T. Its norm and the sum over records follow from u and d: no gradient of a
record is formed. During a step, the layer's map (`keras_fm.per_example`)
replaces its `call` and adds a probe of zeros to the output. The derivative by
the probe is d.
"""

import contextlib
import functools
import math

import keras

from keras_fm.per_example import affine_maps
from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.affine_maps import (
    AT_ONCE,
    ConvolutionMap,
    DenseMap,
    Part,
)
from keras_fm.per_example.embedding_map import EmbeddingMap
from keras_fm.per_example.formed_convolution import (
    DEPTHWISE,
    SEPARABLE,
    TRANSPOSED,
    FormedConvolution,
)
from keras_fm.per_example.recurrent_map import KINDS as RECURRENT
from keras_fm.per_example.recurrent_map import RecurrentMap, is_known
from keras_fm.per_example.scale_map import RectifierMap, ScaleMap, unscaled
from keras_fm.per_example.stages import weights_of
from keras_fm.per_example.windows import cuts, side

_L = keras.layers
_SCALES = tuple(
    getattr(_L, name)
    for name in ("LayerNormalization", "RMSNormalization", "GroupNormalization")
    if hasattr(_L, name)
)


# Maps whose places may be of several uses.
_SEVERAL = (ConvolutionMap, DenseMap, EmbeddingMap, ScaleMap)


class GhostLayer:
    """One layer with its map. Uses of one record are places, one use after the
    other.

    Args:
        layer: the layer, built.
        input_shape, output_shape: of one record.
        uses: how often a record uses it.
    """

    def __init__(self, layer, input_shape, output_shape, uses=1):
        self.layer, self.uses = layer, uses
        self._shape, shape = tuple(output_shape), tuple(input_shape)
        self._before = None
        if type(layer) in _SCALES:
            self._before = unscaled(layer, shape)
        self._of_one = self.map = self._map(shape)
        if uses > 1:
            if type(self.map) not in _SEVERAL:
                raise ValueError("a map for one use")
            self.map = self._map((uses, *shape))
        self.variables = weights_of(self.map.layer, self.map.names)

    def _map(self, shape):
        layer, kind = self.layer, type(self.layer)
        if kind in RECURRENT:
            return RecurrentMap(layer, shape)
        if kind is _L.Embedding:
            return EmbeddingMap(layer, (math.prod(shape),))
        if kind is _L.EinsumDense:
            fan_in = _contracted(layer, shape)
            filters = math.prod(layer.kernel.shape) // fan_in
            bias = layer.bias_axes is not None
            if bias and math.prod(layer.bias.shape) != filters:
                raise ValueError("a bias for some of the outputs")
            places = math.prod(shape) // fan_in
            return ConvolutionMap(
                layer,
                (places, fan_in),
                part=Part(filters=filters, use_bias=bias),
            )
        if kind in _SCALES:
            return ScaleMap(layer, shape)
        if kind is _L.PReLU:
            return RectifierMap(layer, shape)
        if kind in (*DEPTHWISE, *TRANSPOSED):
            return FormedConvolution(layer, shape)
        if kind is not _L.Conv3D:
            try:
                return affine_maps.of_layer(layer, shape)
            except ValueError:
                # Not a plain convolution.
                pass
        return FormedConvolution(layer, shape)

    @property
    def reads_tokens(self):
        """Whether its inputs are whole numbers."""
        return isinstance(self.map, EmbeddingMap)

    @property
    def probe_shape(self):
        """Shape of the probe of one record."""
        return tuple(self.map.output_shape)

    def called(self, inputs, weights, probed, mask=None):
        """Inputs of the map, and outputs of the layer. `probed` is a function
        of the outputs before activation. A mask is for recurrent layers."""
        dtype = self.layer.compute_dtype
        weights = [ops.cast(w, dtype) for w in weights]
        if type(self.layer) in RECURRENT:
            inputs = ops.cast(inputs, dtype)
            read, z = self.map.run(inputs, weights, probed, mask)
            return read, z if self.layer.return_sequences else z[:, -1]
        if self._before is not None:
            inputs = self._before(ops.cast(inputs, "float32"))
        read = ops.reshape(inputs, (-1, *self._of_one.input_shape))
        given = read if self.reads_tokens else ops.cast(read, dtype)
        z = probed(self._of_one.forward(given, weights))
        z = ops.reshape(z, (-1, *self._shape))
        activation = getattr(self.layer, "activation", None)
        return read, z if activation is None else activation(z)


def _contracted(layer, shape):
    """The number of entries over which a plain `EinsumDense` sums."""
    inputs, _, rest = layer.equation.replace(" ", "").partition(",")
    kernel, _, outputs = rest.partition("->")
    common = [c for c in kernel if c in inputs]
    count = len(common)
    if (
        "." in layer.equation
        or not count
        or inputs[-count:] != "".join(common)
        or kernel[:count] != inputs[-count:]
        or outputs != inputs[:-count] + kernel[count:]
        or inputs[0] not in outputs
    ):
        raise ValueError("an equation of another form")
    return math.prod(shape[-count:])


def may_be_ghost(layer):
    """Whether there may be a map for the kind and settings of a layer."""
    kinds = (
        *(_L.Dense, _L.EinsumDense, _L.Embedding, _L.PReLU, *_SCALES),
        *(_L.Conv1D, _L.Conv2D, _L.Conv3D, *DEPTHWISE, *TRANSPOSED),
        *RECURRENT,
    )
    # A subclass may change `call`.
    return (
        type(layer) in kinds
        and layer.built
        and (type(layer) not in RECURRENT or is_known(layer))
        and not getattr(layer, "lora_enabled", False)
        and getattr(layer, "quantization_mode", None) is None
        and getattr(layer, "data_format", None) != "channels_first"
    )


def has_loops(network):
    """Whether the backend's vectorised map does not support gradients of a
    network's layers: on TensorFlow, of recurrent ones."""
    return keras.backend.backend() == "tensorflow" and any(
        isinstance(layer, _L.RNN) for layer in network._flatten_layers()
    )


def xla_compiles(network):
    """Whether XLA compiles all layers of a network on a processor, where Keras
    leaves it out. (Keras marks LSTM and GRU as not compiled, because of GPUs.)
    """
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU") and all(
        layer.supports_jit or isinstance(layer, _L.RNN)
        for layer in network._flatten_layers()
    )


@contextlib.contextmanager
def replaced_calls(functions, name="call"):
    """In the context, functions replace a method of layers.

    Args:
        functions: list of pairs of a layer and a function.
        name: of the method.
    """
    for layer, function in functions:
        layer.__dict__[name] = function
    try:
        yield
    finally:
        for layer, _ in functions:
            del layer.__dict__[name]


def found_in(network, run):
    """The layers of a network that `run` uses and that have a map.

    Args:
        network: a built Keras model.
        run: function of `training` that calls it on one made-up record.

    Returns:
        list of `GhostLayer`.
    """
    met, counts = {}, {}

    def watching(layer):
        own = layer.call

        def call(inputs, *args, **kwargs):
            outputs = own(inputs, *args, **kwargs)
            # As a first state, which no map supports.
            plain = {"mask", "training"}
            more = [*args, *(kwargs[k] for k in set(kwargs) - plain)]
            more = [v for v in more if v is not None]
            met.setdefault(id(layer), []).append((inputs, outputs, more))
            return outputs

        return call

    layers = [
        layer for layer in network._flatten_layers() if may_be_ghost(layer)
    ]
    # A training call may use more layers, or one more often.
    for training in (False, True):
        met.clear()
        with replaced_calls([(layer, watching(layer)) for layer in layers]):
            run(training)
        for layer in layers:
            uses = len(met.get(id(layer), []))
            counts.setdefault(id(layer), []).append(uses)
    learned = {id(v) for v in network.trainable_variables}
    holders = {}
    for layer in network._flatten_layers():
        for variable in layer.trainable_variables:
            if all(variable is not v for v in _of_sublayers(layer)):
                holders.setdefault(id(variable), set()).add(id(layer))
    found = []
    for layer in layers:
        calls = met.get(id(layer), [])
        if not calls or len(set(counts[id(layer)])) > 1:
            continue
        shapes = {
            tuple(tuple(getattr(v, "shape", ())) for v in call[:2])
            for call in calls
        }
        (read, given), *others = shapes
        if (
            others
            or any(more for *_, more in calls)
            or (read[:1], given[:1]) != ((1,), (1,))
        ):
            continue
        try:
            ghost = GhostLayer(layer, read[1:], given[1:], len(calls))
        except (ValueError, TypeError, AttributeError):
            continue
        whole = {id(v) for v in layer.trainable_variables}
        if (
            whole
            and whole == {id(v) for v in ghost.variables}
            and whole <= learned
            and all(len(holders[v]) == 1 for v in whole)
        ):
            found.append(ghost)
    return found


def _of_sublayers(layer):
    return [
        v
        for other in layer._flatten_layers(include_self=False)
        for v in other.trainable_variables
    ]


def lowered(network, way):
    """Replacements for the `call` of some layers. For tables: a token outside
    must not stop a step and appear in the error. For pooling: it is faster. For
    depthwise convolutions on TensorFlow: its map does not support them.

    Args:
        network: a built Keras model.
        way: see `RecordMap`.

    Returns:
        list of pairs of a layer and a function, see `replaced_calls`.
    """
    kinds = {_L.Embedding: _table}
    if keras.backend.backend() == "torch":
        kinds[_L.MaxPooling2D] = kinds[_L.AveragePooling2D] = _pooling
    elif way == "vmap" and keras.backend.backend() == "tensorflow":
        kinds.update(_BY_CHANNEL)
        kinds[_L.MaxPooling2D] = _maxima
    return [
        (layer, kinds[type(layer)](layer))
        for layer in network._flatten_layers()
        if type(layer) in kinds
        and getattr(layer, "data_format", None) != "channels_first"
        and getattr(layer, "quantization_mode", None) is None
    ]


def as_products(network, way):
    """Replacements for the `convolution_op` of layers, also of one's own, on
    TensorFlow: its map over records makes convolutions slow.

    Args:
        network, way: see `lowered`.

    Returns:
        list of pairs of a layer and a function, see `replaced_calls`.
    """
    if way != "vmap" or keras.backend.backend() != "tensorflow":
        return []
    own = _L.Conv2D.convolution_op
    return [
        (layer, functools.partial(_product, layer))
        for layer in network._flatten_layers()
        if getattr(type(layer), "convolution_op", None) is own
        and affine_maps.is_plain(layer)
    ]


def _product(layer, inputs, kernel):
    *size, _, filters = kernel.shape
    sides = zip(inputs.shape[1:], size, layer.strides)
    pads = [side(*one, layer.padding)[1:] for one in sides]
    read = ops.concatenate(cuts(inputs, size, layer.strides, pads), axis=-1)
    if math.prod(read.shape[1:]) > AT_ONCE:
        return type(layer).convolution_op(layer, inputs, kernel)
    flat = ops.reshape(read, (-1, read.shape[-1]))
    found = ops.matmul(flat, ops.reshape(kernel, (-1, filters)))
    return ops.reshape(found, (*read.shape[:-1], filters))


def _table(layer):
    def call(inputs):
        table = ops.cast(layer.embeddings, layer.compute_dtype)
        last = layer.input_dim - 1
        return ops.take(
            table, ops.clip(ops.cast(inputs, "int32"), 0, last), axis=0
        )

    return call


def _pooling(layer):
    """With channels last in memory: Keras copies them to the front, where
    PyTorch takes five times as long."""
    pool = ops.max_pool if type(layer) is _L.MaxPooling2D else ops.average_pool
    given = {"strides": layer.strides, "padding": layer.padding}
    return lambda inputs: affine_maps.convolved(
        pool, inputs, layer.pool_size, **given
    )


def _maxima(layer):
    """Place by place: in a loop, XLA's derivative takes longer."""
    if layer.padding != "valid":
        return functools.partial(type(layer).call, layer)

    def call(inputs):
        parts = cuts(inputs, layer.pool_size, layer.strides)
        return functools.reduce(ops.maximum, parts)

    return call


def _convolution(layer):
    def call(inputs):
        kernel, *pointwise = (
            ops.cast(getattr(layer, name), inputs.dtype)
            for name in ("kernel", "depthwise_kernel", "pointwise_kernel")
            if isinstance(getattr(layer, name, None), keras.Variable)
        )
        found = FormedConvolution(layer, inputs.shape[1:]).forward(
            inputs, [kernel]
        )
        if pointwise:
            found = ops.matmul(
                found, ops.reshape(pointwise[0], (-1, layer.filters))
            )
        if layer.use_bias:
            found = found + ops.cast(layer.bias, found.dtype)
        return found if layer.activation is None else layer.activation(found)

    return call


_BY_CHANNEL = dict.fromkeys((*DEPTHWISE, *SEPARABLE), _convolution)
