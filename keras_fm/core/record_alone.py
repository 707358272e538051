"""A model's output for a record, computed from that record alone.

Models of Keras' own layers on a short list, which take the rows of a batch one
by one, run in batches. A model with any other layer is called with one record
at a time, and keeps nothing of it.
"""

import collections
import contextlib
import functools
import sys

import keras
import numpy as np
from keras import ops

from keras_fm.core import model_graph, model_inputs

# The list. ------------------------------------------------------------------

_KERAS = """
    Activation ActivityRegularization AdaptiveAveragePooling1D
    AdaptiveAveragePooling2D AdaptiveAveragePooling3D AdaptiveMaxPooling1D
    AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention
    AlphaDropout Attention Average AveragePooling1D AveragePooling2D
    AveragePooling3D BatchNormalization Bidirectional CategoryEncoding
    CenterCrop Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D
    Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D
    Cropping3D Dense DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout
    ELU EinsumDense Embedding Flatten GRU GRUCell GaussianDropout GaussianNoise
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GroupNormalization GroupQueryAttention Hashing Identity InputLayer
    IntegerLookup LSTM LSTMCell LayerNormalization LeakyReLU Masking
    MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum MultiHeadAttention
    Multiply Normalization PReLU Permute RMSNormalization RNN RandomBrightness
    RandomContrast RandomCrop RandomFlip RandomRotation RandomTranslation
    RandomZoom ReLU RepeatVector Rescaling Reshape Resizing SeparableConv1D
    SeparableConv2D SimpleRNN SimpleRNNCell Softmax SpatialDropout1D
    SpatialDropout2D SpatialDropout3D StackedRNNCells StringLookup Subtract
    TFDConcat TFDIdentity UnitNormalization UpSampling1D UpSampling2D
    UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
""".split()
# Arithmetic with numbers, or entry by entry: `x / 255`, `x + y`; and a part of
# each record: `x[:, 1:]`. `NotEqual` is the mask of an `Embedding`.
_ARITHMETIC = "Add Divide Multiply NotEqual Subtract TrueDivide".split()


@functools.cache
def _kinds():
    # Keras does not export the layers of its feature spaces.
    places = keras.layers, sys.modules[keras.utils.FeatureSpace.__module__]
    return {
        getattr(place, name)
        for name in _KERAS
        for place in places
        if hasattr(place, name)
    }


def _is_listed(kind):
    """Whether this very class is listed: a subclass may do anything."""
    if kind.__module__.startswith("keras_fm."):
        # Our own layers are made for it; `check_layer` in tests checks most.
        return not issubclass(kind, keras.Model)
    return kind in _kinds()


def unlisted(model):
    """A part of a model that is not known to keep the rows of a batch apart.

    Args:
        model: a built Keras model.

    Returns:
        `None`, or str: one layer or operation of it.

    Example:

    >>> x = keras.Input((4,))
    >>> unlisted(keras.Model(x, keras.layers.Dense(3)(x)))
    >>> unlisted(keras.Model(x, keras.layers.Lambda(ops.sin, name="s")(x)))
    "Lambda 's'"
    """
    if not runs_its_graph(model):
        return _named(model)
    row = tuple(model.inputs[0].shape)[:1]
    for node in model_graph.nodes(model):
        operation = node.operation
        if isinstance(operation, keras.Model):
            found = unlisted(operation)
        elif not isinstance(operation, keras.layers.Layer):
            found = None if _is_arithmetic(node) else _named(operation)
        else:
            found = None if _keeps_apart(node) else _named(operation)
        tensors = [*node.input_tensors, *node.output_tensors]
        # With fewer axes, the last may be that of the records.
        rows = all(len(t.shape) > 1 and t.shape[:1] == row for t in tensors)
        if found or not rows or _may_train(node):
            return found or _named(operation)
    return None


def _named(operation):
    return f"{type(operation).__name__} '{operation.name}'"


def runs_its_graph(model):
    """Whether a call of a model runs the graph that it was built from, and no
    code of its own."""
    # The rows of an owner have no `call`.
    home = getattr(getattr(type(model), "call", None), "__module__", "")
    of_keras = home.startswith("keras.src.models.")
    return of_keras and bool(getattr(model, "inputs", None))


def _may_train(node):
    """Whether it is called as in training, whatever the mode of the model."""
    if isinstance(
        node.operation, (keras.layers.Resizing, keras.layers.CenterCrop)
    ):
        # By their own default, of which they make nothing.
        return False
    arguments = node.arguments
    return bool(arguments.kwargs.get("training")) or any(
        value is True for value in arguments.args
    )


def _is_arithmetic(node):
    kind = type(node.operation)
    if not kind.__module__.startswith("keras.src.ops."):
        return False
    values = [*node.arguments.args, *node.arguments.kwargs.values()]
    if kind.__name__ == "GetItem":
        key = values[-1]
        return isinstance(key, tuple) and key[:1] == (slice(None),)
    if kind.__name__ not in _ARITHMETIC:
        return False
    ranks = {len(v.shape) for v in values if isinstance(v, keras.KerasTensor)}
    return len(ranks) == 1 and all(
        isinstance(v, (int, float, keras.KerasTensor)) for v in values
    )


def _keeps_apart(node):
    layer = node.operation
    if not _is_listed(type(layer)):
        return False
    if type(layer).__module__.startswith("keras_fm."):
        of_batch = getattr(layer, "normalization", None) == "batch"
        return not (of_batch or getattr(layer, "depends_on_data", False))
    ranks = [len(tensor.shape) for tensor in node.input_tensors]
    return _is_plain(layer, min(ranks, default=2)) and all(
        _is_listed(type(inner)) and _is_plain(inner, None)
        for inner in layer._flatten_layers(include_self=False)
    )


def _is_plain(layer, rank):
    """Whether no setting of a layer makes it compute along the records."""
    for name in ("activation", "recurrent_activation"):
        given = getattr(layer, name, None)
        if given is not None and given not in _activations():
            return False
    for name in ("axis", "axes", "_attention_axes"):
        for axis in keras.tree.flatten(getattr(layer, name, None)):
            if axis in (None, -1):
                continue
            if axis < 0 and rank is None or axis % (rank or sys.maxsize) == 0:
                return False
    equation = getattr(layer, "equation", None)
    if equation is not None:
        given, kernel, found = equation.replace("->", ",").split(",")
        if given[0] != found[0] or (given[0] in kernel and given[0] != "."):
            return False
    # In half precision, on processors that multiply tiles, PyTorch returns NaN
    # for every row of a tile if one row holds NaN.
    torch = keras.backend.backend() == "torch"
    return not (
        getattr(layer, "stateful", False)
        or getattr(layer, "quantization_mode", None)
        or (torch and layer.compute_dtype in ("bfloat16", "float16"))
    )


@functools.cache
def _activations():
    return [v for v in vars(keras.activations).values() if callable(v)]


# One record at a time. ------------------------------------------------------


class FeatureMap:
    """Function from a batch of records to a model's output for each record
    alone.

    Args:
        model: a built Keras model.

    Attributes:
        unlisted: `None` if records are computed in batches; else str, the
            layer because of which they are computed one by one.
    """

    def __init__(self, model):
        self.model = model
        self.unlisted = unlisted(model)
        self._compiled = None

    def __call__(self, x):
        """Features of records, an array `(n, ...)`.

        Args:
            x: an array, or list or dict of them. Always pass equally many
                rows if bits must not depend on their number.

        Raises:
            ValueError: see `keras_fm.core.model_inputs.predicted`.
        """
        if self.unlisted is None:
            return model_inputs.predicted(self.model.predict_on_batch, x)
        return model_inputs.predicted(self._one_by_one, x)

    def _one_by_one(self, x):
        x = keras.tree.map_structure(ops.convert_to_tensor, x)
        values = [ops.convert_to_tensor(v) for v in self.model.variables]
        if self._compiled is not False:
            self._compiled = self._compiled or compiled(self._all)
            try:
                return ops.convert_to_numpy(self._compiled(values, x))
            except Exception:
                # Not everything can be a graph: on JAX, lookups cannot.
                self._compiled = False
        return ops.convert_to_numpy(self._all(values, x, graph=False))

    def _all(self, values, x, graph=True):
        return each_alone(self.model, x, values, graph)

    def check_repeats(self):
        """Refuses features that depend on earlier records, as seen on a few
        made-up ones.

        Raises:
            ValueError: naming the layer.
        """
        inputs = getattr(self.model, "inputs", None)
        if self.unlisted is None or not inputs:
            return
        made_up = [_made_up(tensor) for tensor in inputs]
        x = model_inputs.single(made_up)
        again = model_inputs.single([v[::-1] for v in made_up])
        try:
            found = self(x)
            backwards = self(again)[::-1]
        # The model may not accept the made-up records.
        except ValueError:
            return
        is_float = found.dtype.kind == "f"
        if not np.array_equal(found, backwards, equal_nan=is_float):
            raise ValueError(
                "The features of a record change when other records come "
                f"before it: {self.unlisted} draws random numbers outside of "
                "Keras, or stores records where Keras does not know of it. "
                "Draw with `keras.random` and a `keras.random.SeedGenerator`, "
                "or remove the layer."
            )


def _made_up(tensor):
    shape = (4, *(8 if d is None else d for d in tensor.shape[1:]))
    kind = keras.backend.standardize_dtype(tensor.dtype)
    rng = np.random.default_rng(0)
    if kind == "string":
        return rng.choice(np.array(["one", "two words", ""], object), shape)
    if "float" in kind:
        return rng.uniform(0, 1, shape).astype("float32")
    return rng.integers(0, 2, shape).astype(kind)


def each_alone(model, x, values=None, graph=True):
    """A model's output for every record, in a batch of one.

    No variable and no attribute changes. A stream of random numbers is at
    the same place for every record.

    Args:
        model: a built Keras model of one output.
        x: tensor `(n, ...)`, or list or dict of them.
        values: `None`, or values of the variables of the model.
        graph: whether the loop over records may be one of a graph.

    Returns:
        tensor `(n, ...)`.
    """
    if values is None:
        values = [ops.convert_to_tensor(v) for v in model.variables]
    mapping, kept = list(zip(model.variables, values)), Attributes(model)

    def one(record):
        record = keras.tree.map_structure(
            lambda v: ops.expand_dims(v, 0), record
        )
        return _stateless(model, record, mapping, kept)[0]

    backend = keras.backend.backend()
    if graph and backend == "jax":
        import jax

        return jax.lax.map(one, x)

    def at(row):
        return keras.tree.map_structure(lambda v: v[row], x)

    if graph and backend == "tensorflow":
        import tensorflow as tf

        first = one(at(0))
        kind = tf.TensorSpec(first.shape, first.dtype)
        return tf.map_fn(
            # TensorFlow must not rewrite it and its layers.
            tf.autograph.experimental.do_not_convert(one),
            x,
            fn_output_signature=kind,
            parallel_iterations=1,
        )
    rows = range(len(keras.tree.flatten(x)[0]))
    with _forked():
        return ops.stack([one(at(row)) for row in rows])


def _stateless(model, x, mapping, kept):
    """A call of a model that changes nothing in it."""
    if keras.backend.backend() == "torch":
        import torch

        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)
    try:
        with keras.StatelessScope(mapping):
            return model(x, training=False)
    finally:
        kept.give_back()


def compiled(function):
    """A function as one graph of the backend, if the backend has graphs."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.jit(function)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    return function


@contextlib.contextmanager
def _forked():
    """Restores PyTorch's own generators, and keeps nothing for
    gradients."""
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices), torch.no_grad():
        yield


class Attributes:
    """The attributes of all layers of a model, and the contents of lists,
    dicts, sets and arrays among them: a layer may keep its inputs. As a
    context, it restores them at its end."""

    def __init__(self, model):
        holders = list(model._flatten_layers())
        if keras.backend.backend() == "torch":
            # Also modules that are not layers.
            every = [module for layer in holders for module in layer.modules()]
            holders = list({id(module): module for module in every}.values())
        self._kept = [_Kept(vars(holder)) for holder in holders]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.give_back()

    def give_back(self):
        """Restores all of it."""
        for kept in self._kept:
            kept.give_back()


_CONTAINERS = (dict, list, set, collections.deque)


class _Kept:
    """The contents of a list, dict, set or array."""

    def __init__(self, held):
        self._held, self._inner = held, []
        if isinstance(held, _CONTAINERS):
            self._before = _plain(held)(held)
            inner = held.values() if isinstance(held, dict) else held
            self._inner = [_Kept(v) for v in inner if _is_filled(v)]
        elif isinstance(held, np.ndarray):
            self._before = held.copy()
        else:
            self._before = held.detach().clone()

    def give_back(self):
        held, before = self._held, self._before
        # Keras' lists and dicts would follow what is put into them.
        if isinstance(held, dict):
            for name in set(held) - set(before):
                dict.__delitem__(held, name)
            for name, value in before.items():
                if name not in held or held[name] is not value:
                    dict.__setitem__(held, name, value)
        elif isinstance(held, list):
            list.__setitem__(held, slice(None), before)
        elif isinstance(held, set):
            set.clear(held)
            set.update(held, before)
        elif isinstance(held, collections.deque):
            held.clear()
            held.extend(before)
        elif isinstance(held, np.ndarray):
            held[...] = before
        else:
            held.detach().copy_(before)
        for inner in self._inner:
            inner.give_back()


def _plain(held):
    return next(k for k in _CONTAINERS if isinstance(held, k))


def _is_filled(value):
    """Whether something that is not a weight can be put into it."""
    if isinstance(value, np.ndarray):
        return value.flags.writeable
    if isinstance(value, _CONTAINERS):
        return True
    if keras.backend.backend() != "torch":
        return False
    import torch

    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, torch.nn.Parameter)
        # A broadcast array has one number at several places: it is not set.
        and all(s or n < 2 for s, n in zip(value.stride(), value.shape))
    )
