"""The same networks without privacy: what the private form learns, by exact
gradients."""

import keras

from keras_fm.lab.engine.training import Training, exact


def learn(subject, model, x, y, epochs=None):
    """Returns the model."""
    # A convex problem stands, and needs, longer steps.
    alone = len(model.trainable_weights) <= 2
    training = Training(
        epochs=epochs or subject.control_epochs,
        lot=subject.lot(x),
        learning_rate=(10 if alone else 1) * subject.learning_rate,
    )
    return training.fit(model, (x, y), loss=exact).model


def learn_output(subject, model, x, y):
    """`learn` of the last layer alone: what it reads is made once."""
    below = keras.Model(model.inputs[0], model.layers[-2].output)
    features = below.predict(x, batch_size=1000, verbose=0)
    top = keras.Sequential([keras.Input(features.shape[1:]), model.layers[-1]])
    learn(subject, top, features, y)
    return model


def learn_layers(subject, model, x, y):
    """`learn` of the trained layers of a `DPMAC` or `FunctionalNet`, by
    ordinary gradients."""
    plain = keras.Sequential([model.feature_model, *model.private_layers])
    return learn(subject, plain, x, y)
