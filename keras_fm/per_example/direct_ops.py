"""Operations of `keras.ops` on tensors that are known to be tensors.

On PyTorch, Keras looks for symbolic tensors in every argument of an operation
and in every size of its shapes, which takes longer than small operations: a
step has a thousand. There, these are PyTorch's own functions.
"""

import keras
from keras import ops

if keras.backend.backend() == "torch":
    import torch
    from torch import (  # noqa: F401
        isfinite,
        matmul,
        reshape,
        sqrt,
        square,
        where,
    )

    def cast(x, dtype):
        return x.to(getattr(torch, dtype))

    def concatenate(parts, axis=0):
        return torch.cat(parts, axis) if len(parts) > 1 else parts[0]

    def expand_dims(x, axis):
        return torch.unsqueeze(x, axis)

    def norm(x, axis):
        return torch.linalg.vector_norm(x, dim=axis)

    def pad(x, ends):
        return torch.nn.functional.pad(x, [v for e in ends[::-1] for v in e])

    def split(x, parts, axis):
        return torch.chunk(x, parts, axis)

    def sum(x, axis=None, keepdims=False):
        return torch.sum(x, axis, keepdim=keepdims)

    def transpose(x, axes=None):
        return x.T if axes is None else torch.permute(x, axes)


def __getattr__(name):
    return getattr(ops, name)
