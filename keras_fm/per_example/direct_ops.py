"""Operations of `keras.ops` on tensors that are known to be tensors.

On PyTorch, Keras looks for symbolic tensors in every argument of an operation
and in every size of its shapes, which takes longer than small operations: a
step has a thousand. There, the most frequent ones are PyTorch's own.
"""

import keras
from keras import ops

if keras.backend.backend() == "torch":
    import torch
    from torch import matmul, reshape  # noqa: F401

    def concatenate(parts, axis=0):
        return torch.cat(parts, axis) if len(parts) > 1 else parts[0]


def __getattr__(name):
    return getattr(ops, name)
