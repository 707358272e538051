"""Which operations of `keras.ops` keep the records of a batch apart."""

import math
import sys

import numpy as np

from keras_fm.training.symbolic_call import (
    MixesError,
    UnknownError,
    are_alike,
    check_axes,
    check_einsum,
    check_no_arrays,
    check_not_replaced,
    check_rank,
    is_tensor,
    only_tensor,
    with_axes,
)

_MODULES = tuple(
    f"keras.src.ops.{name}"
    for name in ("core", "image", "linalg", "math", "nn", "numpy")
)


def check_operation(call):
    """Checks a call of an operation that is no layer.

    Raises:
        MixesError: if it mixes records.
        UnknownError: if that is not known.
    """
    kind = type(call.operation)
    module = sys.modules.get(kind.__module__)
    known = kind.__module__ in _MODULES and (
        vars(module).get(kind.__name__) is kind
    )
    if not known or kind.__name__ not in _RULES:
        raise UnknownError("it is not among the operations known here")
    check_not_replaced(call.operation)
    if any(is_tensor(value) for value in vars(call.operation).values()):
        raise UnknownError("a setting of it depends on records")
    _RULES[kind.__name__](call)


def _rank(tensor):
    return len(tensor.shape)


def _elementwise(call):
    """Entry by entry; tensors of fewer axes would line up from the right."""
    ranks = {_rank(tensor) for tensor in call.tensors}
    if len(ranks) > 1:
        shapes = [tuple(tensor.shape) for tensor in call.tensors]
        raise MixesError(f"it lines up the axes of {shapes} from the right")
    _check_constants(
        [*call.leaves, *vars(call.operation).values()], *ranks, alike=True
    )


def _check_constants(values, rank, alike=False):
    """Constants must not have a row for each record; with `alike` they may
    have one that is the same for all."""
    for value in values:
        if is_tensor(value) or not hasattr(value, "shape"):
            continue
        shape = tuple(value.shape)
        if len(shape) == rank and alike and are_alike(value):
            continue
        if len(shape) > rank or (len(shape) == rank and shape[0] != 1):
            raise UnknownError(f"a constant in it has shape {shape}")


def _first(call):
    """The one tensor, called first, beside small constants."""
    if len(call.tensors) != 1 or not call.args or not is_tensor(call.args[0]):
        raise UnknownError("records are not its first argument alone")
    return call.args[0]


def _along(name="axis"):
    def check(call):
        tensor = _first(call)
        check_axes(getattr(call.operation, name), _rank(tensor))
        # Weights would be summed over rows, several `q` be a first axis.
        _check_constants([*call.leaves, *vars(call.operation).values()], 1)

    return check


def _scaled(call):
    """Normalisation along axes, and weights of a record's shape."""
    tensor = _first(call)
    check_axes(call.operation.axis, _rank(tensor))
    _check_constants(call.leaves, _rank(tensor))


def _moments(call):
    if getattr(call.operation, "synchronized", False):
        raise MixesError("it adds up the moments of several replicas")
    check_axes(call.operation.axes, _rank(_first(call)))


def _new_axis(call):
    axes = call.operation.axis
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    check_axes(axes, _rank(only_tensor(call)) + len(axes))


def _joined(extra):
    def check(call):
        check_no_arrays(call, alike=True)
        ranks = {_rank(tensor) for tensor in with_axes(call)}
        if len(ranks) > 1:
            raise UnknownError("its tensors have different numbers of axes")
        check_axes(call.operation.axis, ranks.pop() + extra)

    return check


def _between(*names):
    """Axes named by attributes that the operation works in or moves."""

    def check(call):
        rank = _rank(only_tensor(call))
        for name in names:
            check_axes(getattr(call.operation, name), rank)

    return check


def _per_record(low, high=None):
    """Works in the last axes of what has at least `low` of them."""

    def check(call):
        only_tensor(call, low, high)

    return check


def _transformed(low):
    """Of real and imaginary parts, along the last axes."""

    def check(call):
        check_no_arrays(call)
        for tensor in call.tensors:
            check_rank(tensor, low)

    return check


def _filtered(call):
    """Convolution and pooling, with constant kernels."""
    check_rank(_first(call), 3)


def _permuted(call):
    rank = _rank(only_tensor(call))
    axes = call.operation.axes
    if rank > 1 and (axes is None or axes[0] % rank):
        raise MixesError("it moves the axis of the records")


def _reshaped(call):
    shape = tuple(only_tensor(call).shape)
    new = call.operation.newshape
    new = tuple(new) if isinstance(new, (list, tuple)) else (new,)
    if new and new[0] == shape[0] is not None:
        return
    if new[:1] == (None,) or (
        new[:1] == (-1,) and (None in shape[1:] or {None, -1} & set(new[1:]))
    ):
        raise UnknownError(
            f"it makes shape {new} of shape {shape}; use "
            "`keras.layers.Reshape` or `keras.layers.Flatten`"
        )
    if new[:1] != (-1,) or math.prod(new[1:]) != math.prod(shape[1:]):
        raise MixesError(
            f"it makes shape {new} of shape {shape}, which are other records; "
            "use `keras.layers.Reshape`"
        )


def _indexed(call):
    if len(call.tensors) != 1 or len(call.args) != 2:
        raise UnknownError("its index depends on records")
    tensor, key = call.args
    key = key if isinstance(key, tuple) else (key,)
    for item in key:
        single = isinstance(item, (int, np.integer, slice))
        if isinstance(item, bool) or not (
            single or item is None or item is Ellipsis
        ):
            raise UnknownError("its index is neither a number nor a slice")
    taken = sum(item is not None and item is not Ellipsis for item in key)
    if key and key[0] is Ellipsis:
        kept = taken < _rank(tensor)
    else:
        kept = not key or key[0] in (slice(None), slice(0, None))
    if not kept:
        raise MixesError("it takes some records out of a batch")


def _padded(call):
    tensor = only_tensor(call)
    width = call.operation.pad_width
    if not isinstance(width, (list, tuple)) or len(width) != _rank(tensor):
        raise UnknownError(f"its width is {width!r}")
    if tuple(np.ravel(width[0])) not in ((0,), (0, 0)):
        raise MixesError("it pads the axis of the records")


def _tiled(call):
    repeats = tuple(np.ravel(call.operation.repeats))
    rank = _rank(only_tensor(call))
    if len(repeats) > rank or (len(repeats) == rank and repeats[0] != 1):
        raise MixesError("it repeats the records of a batch")


def _product(call):
    if len(call.args) != 2:
        raise UnknownError("it has other arguments than two")
    left, right = (_Operand(value) for value in call.args)
    constant = right if left.records else left
    if left.records and right.records:
        apart = left.rank == right.rank > 2
    elif constant.rank > 2:
        raise UnknownError("a constant in it may have a row for each record")
    else:
        # The last but one axis of the second is summed over.
        apart = left.rank > 1 if left.records else right.rank > 2
    if not apart:
        raise MixesError("it multiplies along the axis of the records")


def _dot(call):
    """A sum over the last axis of the first and the one before of the
    second; the other axes of the first come first."""
    left, right = (_Operand(value) for value in call.args)
    if right.records or left.rank < 2 or right.rank not in (1, 2):
        raise MixesError("it multiplies along the axis of the records")


def _tensordot(call):
    left, right = (_Operand(value) for value in call.args)
    if right.records:
        raise MixesError("it multiplies along the axis of the records")
    axes = call.operation.axes
    if isinstance(axes, (int, np.integer)):
        if not axes < left.rank:
            raise MixesError("it sums over the records")
        return
    check_axes(np.ravel(axes[0]).tolist(), left.rank)


class _Operand:
    def __init__(self, value):
        self.records = is_tensor(value)
        self.rank = len(getattr(value, "shape", None) or np.shape(value))


def _einsum(call):
    operands = [_Operand(value) for value in call.args]
    check_einsum(
        call.operation.subscripts,
        [v.rank if v.records else None for v in operands],
    )


def _broadcast(call):
    tensor, new = only_tensor(call), tuple(call.operation.shape)
    if len(new) != _rank(tensor) or new[0] != tensor.shape[0]:
        raise UnknownError(f"it makes shape {new} of {tuple(tensor.shape)}")


def _sliced(call):
    tensor = _first(call)
    start, size = call.args[1:] if len(call.args) == 3 else ((), ())
    if not (len(start) and start[0] == 0 and size[0] == tensor.shape[0]):
        raise UnknownError("it may take some records out of a batch")


def _taken(call):
    if len(call.args) != 2 or len(call.tensors) != 1:
        raise MixesError("each record takes from all of them")
    values, axis = _Operand(call.args[0]), call.operation.axis
    if values.records:
        check_axes(axis, values.rank)
    elif axis is None or axis % max(values.rank, 1):
        raise UnknownError(f"its axis is {axis!r}")


def _taken_along(call):
    _elementwise(call)
    check_axes(call.operation.axis, _rank(call.tensors[0]))


def _one_hot(call):
    check_axes(call.operation.axis, _rank(only_tensor(call)) + 1)


def _multi_hot(call):
    only_tensor(call, 2)
    if call.operation.axis != -1:
        raise UnknownError(f"its axis is {call.operation.axis!r}")


def _chosen(call):
    if sum(value is not None for value in call.leaves) < 3:
        raise MixesError("it finds records instead of changing them")
    _elementwise(call)


def _attention(call):
    values = {**dict(zip(("query", "key", "value"), call.args)), **call.kwargs}
    names = sorted(name for name, v in values.items() if is_tensor(v))
    if len(call.args) > 3 or names != ["key", "query", "value"]:
        raise UnknownError("it is called with more than query, key and value")
    check_no_arrays(call)
    for tensor in call.tensors:
        check_rank(tensor, 4, 4)


def _mixes(call):
    raise MixesError("it works on the batch as a whole")


_ELEMENTWISE = """
    Abs Absolute Angle Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh
    BitwiseAnd BitwiseInvert BitwiseLeftShift BitwiseNot BitwiseOr
    BitwiseRightShift BitwiseXor Cast Cbrt Ceil Celu Clip Conj Conjugate
    ConvertToTensor Copy Cos Cosh Deg2rad Divide DivideNoNan Elu
    Equal Erf Erfc Erfinv Exp Exp2 Expm1 Fabs Floor FloorDivide Fmax Fmin Fmod
    FullLike Gcd Gelu Greater GreaterEqual HardShrink HardSigmoid HardSilu
    HardTanh Heaviside Hypot I0 Imag Isclose Isfinite Isinf Isnan Isneginf
    Isposinf Isreal Lcm Ldexp LeakyRelu LeftShift Less LessEqual Log Log10
    Log1p Log2 LogSigmoid Logaddexp Logaddexp2 LogicalAnd LogicalNot LogicalOr
    LogicalXor Maximum Minimum Mod Multiply NanToNum Negative Nextafter
    NotEqual OnesLike Polar Power Rad2deg Real Reciprocal Relu Relu6
    RightShift Round Rsqrt SaturateCast Select Selu Sigmoid Sign Signbit Silu
    Sin Sinc Sinh SoftShrink Softplus Softsign SparsePlus SparseSigmoid Sqrt
    Square Squareplus StopGradient Subtract Tan Tanh TanhShrink Threshold
    TrueDivide Trunc ZerosLike Add
""".split()
# Of the elementwise ones, the functions of one tensor.
POINTWISE = """
    abs absolute arcsinh arctan celu cos cosh elu erf exp expm1 gelu
    hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log1p
    log_sigmoid negative relu relu6 selu sigmoid sign silu sin sinh
    soft_shrink softplus softsign sparse_plus sparse_sigmoid square
    squareplus swish tanh tanh_shrink
""".split()
_ALONG_AXIS = """
    All Amax Amin Any Argmax Argmin Argpartition Argsort ArraySplit Average
    CountNonzero Cumprod Cumsum Diff Flip Glu LogSoftmax Logsumexp Max Mean
    Median Min Nanargmax Nanargmin Nancumprod Nancumsum Nanmax Nanmean
    Nanmedian Nanmin Nanpercentile Nanprod Nanquantile Nanstd Nansum Nanvar
    Norm Normalize Percentile Prod Ptp Quantile Repeat Roll Softmax Sort
    Sparsemax Split Squeeze Std Sum Trapezoid Unstack Var
""".split()
_WHOLE_BATCH = """
    AllClose Append Bincount Corrcoef Histogram Kron Nonzero Outer Ravel
    SegmentMax SegmentMin SegmentProd SegmentSum Unique Vdot Vstack
""".split()

_RULES = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_ALONG_AXIS, _along()),
    **dict.fromkeys(_WHOLE_BATCH, _mixes),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), _scaled),
    **dict.fromkeys(
        (
            "AdaptiveAveragePool",
            "AdaptiveMaxPool",
            "AveragePool",
            "Conv",
            "ConvTranspose",
            "DepthwiseConv",
            "MaxPool",
            "SeparableConv",
        ),
        _filtered,
    ),
    **dict.fromkeys(
        (
            "CropImages",
            "DepthToSpace",
            "ExtractPatches",
            "GaussianBlur",
            "HSVToRGB",
            "PadImages",
            "RGBToGrayscale",
            "RGBToHSV",
            "Resize",
            "SobelEdges",
            "SpaceToDepth",
        ),
        _per_record(4, 4),
    ),
    **dict.fromkeys(("ExtractSequences", "STFT", "TopK"), _per_record(2)),
    **dict.fromkeys(("Tril", "Triu"), _per_record(3)),
    **dict.fromkeys(("FFT", "IRFFT", "RFFT"), _transformed(2)),
    **dict.fromkeys(("FFT2", "IFFT2"), _transformed(3)),
    **dict.fromkeys(("Diagonal", "Trace"), _between("axis1", "axis2")),
    "BatchNorm": _scaled,
    "BroadcastTo": _broadcast,
    "Concatenate": _joined(0),
    "Digitize": _first,
    "Dot": _dot,
    "DotProductAttention": _attention,
    "Einsum": _einsum,
    "ExpandDims": _new_axis,
    "GetItem": _indexed,
    "Matmul": _product,
    "Moments": _moments,
    "Moveaxis": _between("source", "destination"),
    "MultiHot": _multi_hot,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Rot90": _between("axes"),
    "Stack": _joined(1),
    "Swapaxes": _between("axis1", "axis2"),
    "Take": _taken,
    "TakeAlongAxis": _taken_along,
    "Tensordot": _tensordot,
    "Tile": _tiled,
    "Transpose": _permuted,
    "Where": _chosen,
}
