"""Fast versions of `keras.ops` for arguments that are tensors.

On PyTorch, Keras searches every argument of an operation, and every size of its
shape, for symbolic tensors. That takes longer than a small operation, and a
step has a thousand. So the most frequent operations call PyTorch directly
there.
"""

import keras
from keras import ops


def concatenate(parts, axis=0):
    if keras.backend.backend() != "torch":
        return ops.concatenate(parts, axis)
    import torch

    return torch.cat(parts, axis) if len(parts) > 1 else parts[0]


# Of one meaning and signature in Keras and PyTorch.
_SAME = "cos isfinite log logical_not matmul reshape sin sqrt square sum where"


def rows(value, start, size):
    """`size` rows of a tensor from row `start` on."""
    if keras.backend.backend() == "torch":
        return value[start : start + size]
    begin = (start, *(0 for _ in value.shape[1:]))
    return ops.slice(value, begin, (size, *value.shape[1:]))


def segment_sum(values, segments, num_segments):
    if keras.backend.backend() != "torch":
        return ops.segment_sum(values, segments, num_segments=num_segments)
    sums = values.new_zeros((num_segments, *values.shape[1:]))
    return sums.index_add_(0, segments, values)


def __getattr__(name):
    if keras.backend.backend() == "torch" and name in _SAME.split():
        import torch

        return getattr(torch, name)
    return getattr(ops, name)
