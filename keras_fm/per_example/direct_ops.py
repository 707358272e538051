"""Operations of `keras.ops` on tensors that are known to be tensors.

On PyTorch, Keras looks for symbolic tensors in every argument of an operation
and in every size of its shapes, which takes longer than small operations: a
step has a thousand. There, the most frequent ones are PyTorch's own.
"""

import keras
from keras import ops


def concatenate(parts, axis=0):
    if keras.backend.backend() != "torch":
        return ops.concatenate(parts, axis)
    import torch

    return torch.cat(parts, axis) if len(parts) > 1 else parts[0]


def __getattr__(name):
    if keras.backend.backend() == "torch" and name in ("matmul", "reshape"):
        import torch

        return getattr(torch, name)
    return getattr(ops, name)
