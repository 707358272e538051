"""`keras.layers.MultiHeadAttention` as a graph of known parts.

Queries, keys and values are read off every position by itself, and so is what
comes of them: four maps. Between them stands the attention, which has no
weights and knows the positions of one record only.
"""

import math

import keras
from keras import ops

from keras_fm.stacks import layer_stack
from keras_fm.stacks.affine_maps import ConvolutionMap, Part

KIND = keras.layers.MultiHeadAttention
# Settings that are not known here, and what they must be.
_PLAIN = {
    "dropout": 0.0,
    "use_gate": False,
    "sliding_window": None,
    "attention_axes": (None, (1,), [1]),
}
_CALLED_WITH = ("query", "value", "key")


class _Attended(ConvolutionMap):
    """The last map, which reads what the attention gives."""

    reads = (-3, -2, -1)

    def __init__(self, layer, input_shape, views, part, causal):
        super().__init__(layer, input_shape, views, part)
        self._causal = causal

    def passage(self, args):
        config = self.layer.get_config()
        heads = config["num_heads"]
        root = math.sqrt(config["key_dim"])

        def by_head(values):
            places, channels = values.shape[1:]
            shape = (-1, places, heads, channels // heads)
            return ops.transpose(ops.reshape(values, shape), (0, 2, 1, 3))

        def attended(query, key, value):
            query, key, value = (by_head(v) for v in (query, key, value))
            scores = ops.matmul(query / root, ops.transpose(key, (0, 1, 3, 2)))
            if self._causal:
                seen = ops.tril(ops.ones(scores.shape[2:], "bool"))
                scores = ops.where(seen, scores, -3e38 * ops.ones_like(scores))
            found = ops.matmul(ops.softmax(scores), value)
            return ops.transpose(found, (0, 2, 1, 3))

        return attended


def parts_of(layer, args, kwargs, views):
    """The tensors that a layer reads, and its maps; `reads` of a map are the
    places of what it reads among these tensors and the outputs of maps
    before.

    Args:
        layer: the layer, built.
        args, kwargs: what it is called with, symbolic.
        views: int, rows of the batch that are one record.

    Raises:
        ValueError: if it has settings or is called with what is not known
            here, naming it.
    """
    config = layer.get_config()
    for name, wanted in _PLAIN.items():
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        if config.get(name, wanted[0]) not in wanted:
            raise layer_stack.refusal(layer, f"must have {name}={wanted[0]}")
    for name in _NAMES:
        # LoRA, and what it passes on.
        layer_stack.check_layer(getattr(layer, name), seen=False)
    given = {**dict(zip(_CALLED_WITH, args)), **kwargs}
    if len(args) > len(_CALLED_WITH):
        raise layer_stack.refusal(layer, "must be called without masks")
    causal = given.pop("use_causal_mask", False)
    given.pop("training", None)
    given = {name: v for name, v in given.items() if v is not None}
    more = set(given) - set(_CALLED_WITH)
    if more - {"return_attention_scores"} or given.pop(
        "return_attention_scores", False
    ):
        raise layer_stack.refusal(
            layer, f"must be called without {sorted(more)}"
        )
    query, value = given["query"], given["value"]
    tensors = [query, given.get("key", value), value]
    if any(len(tensor.shape) != 3 for tensor in tensors):
        raise layer_stack.refusal(layer, "must read `(positions, channels)`")
    heads, sizes = config["num_heads"], [config["key_dim"]] * 2
    sizes.append(config["value_dim"] or config["key_dim"])
    maps = []
    for k, (tensor, size) in enumerate(zip(tensors, sizes)):
        part = _part(layer, k, heads * size)
        read = tuple(tensor.shape[1:])
        maps.append(ConvolutionMap(layer, read, views, part))
        maps[-1].reads = (k,)
    kernel = getattr(layer, _NAMES[3]).kernel
    if len(kernel.shape) != 3:
        raise layer_stack.refusal(
            layer, "must have one number for `output_shape`"
        )
    read = (query.shape[1], heads * sizes[2])
    part = _part(layer, 3, kernel.shape[-1])
    return tensors, [*maps, _Attended(layer, read, views, part, causal)]


_NAMES = ("_query_dense", "_key_dense", "_value_dense", "_output_dense")


def _part(layer, k, filters):
    return Part(
        filters=filters,
        use_bias=layer.get_config()["use_bias"],
        names=(f"{_NAMES[k]}.kernel", f"{_NAMES[k]}.bias"),
    )
