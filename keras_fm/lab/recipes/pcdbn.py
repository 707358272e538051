"""pCDBN: convolutional RBMs below dense layers."""

import keras

from keras_fm.lab.recipes.training import Curve, Fitted, accuracy, taylor


def begin(training, model, data):
    """The callback of the published form and its pre-trained RBMs."""
    private = None
    if training.epsilon is not None:
        lot = training.lot or len(data[0])
        private = training.claimed(data, model.guarantee(lot=lot))
    training.pretrain(model, data[0], private)
    return private


def published(training, model, data):
    """As printed: pre-trained under noise, then the layers above. Without an
    epsilon the model must be without noise."""
    private = begin(training, model, data)
    return training.fit(model, data, private)


def curve(training, model, data, test):
    """`published`, with the test accuracy after some epochs.

    Returns:
        `Fitted` and tuple of `(epoch, accuracy)`.
    """
    private = begin(training, model, data)
    # The first epoch fixes the noise; the RBMs rest, so their maps are made
    # once for the others.
    training.but(epochs=1).fit(model, data, private)
    points = [(1, accuracy(model, *test))]
    below, head = _parts(model)
    maps, test_maps = (
        below.predict(x, batch_size=1000, verbose=0) for x in (data[0], test[0])
    )
    watch = Curve(test_maps, test[1], training.epochs)
    head.compile(training.adam(), taylor())
    head.fit(
        maps,
        data[1],
        initial_epoch=1,
        epochs=training.epochs,
        batch_size=training.lot,
        callbacks=[watch],
        verbose=0,
    )
    return Fitted(model=model, private=private), (*points, *watch.points)


def _parts(model):
    """What is below the flattened maps, and above; the output layer keeps
    its noise."""
    maps = model.get_layer("flatten").output
    below = keras.Model(model.inputs[0], maps)
    inputs = outputs = keras.Input(maps.shape[1:])
    names = [layer.name for layer in model.layers]
    for layer in model.layers[names.index("flatten") + 1 :]:
        outputs = layer(outputs)
    return below, keras.Model(inputs, outputs)
