"""A first private model: digits, one release, proven epsilon.

python examples/first_private_model.py
"""

import keras

import keras_fm as fm


def main():
    (x, y), (x_test, y_test) = fm.datasets.load("digits")

    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),  # unit L2 norm
            fm.layers.RandomFeatures(64, kind="fourier", scale=0.7),  # public
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(10),  # its objective is released
        ]
    )
    private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5, data=(x, y))
    print(private.plan(model))  # before anything is used or spent

    model.compile(
        "adam", loss=fm.losses.TaylorCrossEntropy(), metrics=["accuracy"]
    )
    model.fit(
        x,
        y,
        epochs=5,
        callbacks=[private],
        validation_data=(x_test, y_test),
        verbose=2,
    )
    print(private.report())

    # Free: train on, save, load, train again. Uses no record, draws no noise.
    model.save("private_digits.keras")
    loaded = keras.saving.load_model("private_digits.keras")
    loaded.fit(x, y, epochs=1, verbose=0)
    print("after loading:", loaded.evaluate(x_test, y_test, verbose=0))


if __name__ == "__main__":
    main()
