"""Where noisy steps may run."""

import keras

from keras_fm.core import full_precision, replicas


def check(model):
    """Refuses places where noise would not be added once, or not be fresh, or
    where products are rounded more than a clip allows for.

    Args:
        model: the Keras model that is trained.

    Raises:
        ValueError: saying what the place must be.
    """
    full_precision.check()
    count, mirrored = replicas.of_strategy(model)
    if count > 1 and not mirrored:
        raise ValueError(
            "Noisy steps on several replicas need "
            "`tf.distribute.MirroredStrategy`. "
            f"Received: {type(model.distribute_strategy).__name__} with "
            f"{count} replicas"
        )
    together = replicas.processes(model)
    if together > 1:
        raise ValueError(
            "Noisy steps must run in one process: several would each add "
            f"their own noise. Received: {together} processes"
        )
    if keras.backend.backend() == "torch" and model.jit_compile:
        raise ValueError(
            "`jit_compile=True` on PyTorch would compile the noise of "
            "one step into all of them. Compile with jit_compile=False."
        )
