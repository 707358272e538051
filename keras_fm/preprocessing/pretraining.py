"""Pre-trains a stack layer by layer, with ordinary `compile` and `fit`."""

import warnings

import keras

from keras_fm.kernel import checks


def lowest(layers, depth):
    """The lowest `depth` layers of a stack; all of them for `None`.

    Raises:
        ValueError: if the stack has fewer.
    """
    if depth is not None:
        checks.integer("depth", depth, at_least=1, at_most=len(layers))
    return layers[:depth]


def fit_stack(
    view,
    depth,
    x,
    private,
    *,
    proven,
    loss=None,
    epochs,
    batch_size,
    optimizer,
    verbose,
):
    """Trains the layers of a stack one after the other, without labels.

    In the proven form there is one fit, of the topmost view: `private` releases
    every layer of the stack without a release, and nothing else is trained.

    Args:
        view: function from a depth (1, 2, ...) to the Keras model that trains
            the layer at that depth; its `stack` holds the layers up to there.
        depth: int, number of layers of the stack.
        x: the records.
        private: a `PrivateModel`, or `None` for the non-private twin.
        proven: bool, whether the model has the proven form.
        loss: `None`, a Keras loss, or a function from the topmost layer of a
            view to a loss.
        epochs, batch_size, optimizer, verbose: as in `compile` and `fit`.

    Returns:
        list of `keras.callbacks.History`, one for each fit.

    Raises:
        ValueError: if a proven model gets no `private`.
    """
    if proven and private is None:
        raise ValueError(
            "The layers of a proven model learn from a release only: write "
            "`model.pretrain(x, private)` with `private = "
            "keras_fm.callbacks.PrivateModel(epsilon=1.0, delta=1e-5, "
            "data=x)`. A non-private "
            'twin is built with guarantee="published", unprotected=True.'
        )
    histories = []
    for level in [depth] if proven else range(1, depth + 1):
        stage = view(level)
        top, below = stage.stack[-1], stage.stack[:-1]
        trainable = [layer.trainable for layer in below]
        for layer in below:
            layer.trainable = False
        top.set_pretraining(not proven)
        is_loss = loss is None or isinstance(loss, (str, keras.losses.Loss))
        stage.compile(_fresh(optimizer), loss if is_loss else loss(top))
        try:
            with warnings.catch_warnings():
                if proven:
                    # Keras warns since all weights come from the release.
                    warnings.filterwarnings("ignore", ".*trainable weights")
                history = stage.fit(
                    x,
                    epochs=1 if proven else epochs,
                    # One batch is enough to see the released weights work.
                    steps_per_epoch=1 if proven else None,
                    batch_size=batch_size,
                    callbacks=[] if private is None else [private],
                    verbose=verbose,
                )
        finally:
            for layer, was in zip(below, trainable):
                layer.trainable = was
            # After `trainable`, which changes all weights of a layer.
            for layer in stage.stack:
                layer.set_pretraining(False)
        histories.append(history)
    return histories


def _fresh(optimizer):
    """An optimizer without state, for one fit."""
    if isinstance(optimizer, str):
        return keras.optimizers.get(optimizer)
    return type(optimizer).from_config(optimizer.get_config())
