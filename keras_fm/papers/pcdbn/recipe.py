"""pCDBN: convolutional RBMs below dense layers."""

import keras


def begin(training, model, data):
    """Pre-trains the RBMs; returns the callback of the published form."""
    private = None
    if training.epsilon is not None:
        lot = training.lot or len(data[0])
        private = training.claimed(data, model.guarantee(lot=lot))
    training.pretrain(model, data[0], private)
    return private


def published(training, model, data):
    """Trains as printed: pre-trains with noise, then trains the layers above.
    Without an epsilon the model must have no noise."""
    private = begin(training, model, data)
    return training.fit(model, data, private)


def split(model):
    """The models below and above the flattened maps; the output layer keeps
    its noise."""
    maps = model.get_layer("flatten").output
    below = keras.Model(model.inputs[0], maps)
    inputs = outputs = keras.Input(maps.shape[1:])
    names = [layer.name for layer in model.layers]
    for layer in model.layers[names.index("flatten") + 1 :]:
        outputs = layer(outputs)
    return below, keras.Model(inputs, outputs)
