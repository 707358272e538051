"""Bring your own public features: a network trained on public data.

    python examples/public_features.py

The public data are drawn pen strokes: nobody's records. In your project they
are a data set that may be shown to anybody, or a network from elsewhere.
"""

import keras

import keras_fm as fm


def strokes(shapes):
    """Public images of 8 x 8 pixels, and which shape each is a drawing of."""
    images, shape = fm.datasets.pen_strokes.load(
        shapes=shapes, variants=40, image_size=32
    )
    # The ink lies in the middle 24 x 24 pixels; a digit's fills its image.
    images = images[:, 4:28, 4:28].reshape(-1, 8, 3, 8, 3).mean(axis=(2, 4))
    return images[..., None], shape


def public_network(images, shape, epochs):
    """Ordinary training, on public data only: no budget is spent."""
    network = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, name="features"),
            keras.layers.Dense(int(shape.max()) + 1),
        ]
    )
    network.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    network.fit(images, shape, batch_size=128, epochs=epochs, verbose=0)
    return network


def private_fit(below, train, test, epsilon):
    """An output layer on `below`, by one release of the private records."""
    x, y = train
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            below,
            fm.layers.NormalizationLayer(),  # the public bound: length 1
            fm.layers.PrivateDense(10),
        ]
    )
    private = fm.callbacks.PrivateModel(epsilon=epsilon, delta=1e-5, data=train)
    model.compile(
        "adam", loss=fm.losses.TaylorCrossEntropy(), metrics=["accuracy"]
    )
    model.fit(x, y, batch_size=len(x), callbacks=[private], verbose=0)
    return 100 * model.evaluate(*test, verbose=0)[1], private.report()


def main(epsilons=(0.5, 1.0, 8.0), shapes=100, epochs=8):
    keras.utils.set_random_seed(0)  # of the public network, not of noise
    train, test = fm.datasets.load("digits")
    network = public_network(*strokes(shapes), epochs)

    # Everything below its last layer, frozen: public by your declaration,
    # and the report names every layer of it.
    features = keras.Model(
        network.inputs, network.get_layer("features").output, name="public"
    )
    features.trainable = False
    accuracies = {}
    for epsilon in epsilons:
        pixels, _ = private_fit(keras.layers.Flatten(), train, test, epsilon)
        public, report = private_fit(features, train, test, epsilon)
        accuracies[epsilon] = pixels, public
    print(report)
    print("test accuracy in %   pixels   public features")
    for epsilon, (pixels, public) in accuracies.items():
        print(f"epsilon {epsilon:<12g} {pixels:6.1f} {public:12.1f}")
    return accuracies


if __name__ == "__main__":
    main()
