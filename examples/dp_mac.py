"""DP-MAC and forty rounds of the output layer against one release, on digits.

    python examples/dp_mac.py

Three proven models of the same budget: one release of the output layer, 40
rounds of it, and a network of two layers trained by auxiliary coordinates.
"""

import keras

import keras_fm as fm

BUDGET = fm.PrivacyBudget(epsilon=2.0, delta=1e-5)


def main():
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = fm.datasets.load("digits")
    for name, rounds in (
        ("one release", None),
        ("40 rounds", fm.Rounds(rounds=40, learning_rate=16.0)),
    ):
        model = keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                keras.layers.Flatten(),
                fm.layers.NormalizationLayer(),
                fm.layers.PrivateDense(10, rounds=rounds),
            ]
        )
        private = fm.callbacks.PrivateModel(BUDGET, data=(x, y))
        model.compile(
            "sgd", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"]
        )
        model.fit(x, y, callbacks=[private], verbose=0)
        show(name, model, private, x_test, y_test)

    model = fm.models.DPMAC(
        x.shape[1:],
        [keras.layers.Dense(50, activation="relu"), keras.layers.Dense(10)],
        clip=[0.1, 0.3],
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.3),
        below=[
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
            keras.layers.Rescaling(8.0),
        ],
    )
    private = fm.callbacks.PrivateModel(BUDGET)
    model.compile(keras.optimizers.Adam(0.01), metrics=["accuracy"])
    print(private.plan(model, x, batch_size=400, epochs=30))
    model.fit(x, y, batch_size=400, epochs=30, callbacks=[private], verbose=0)
    show("DP-MAC", model, private, x_test, y_test)
    print(private.report())


def show(name, model, private, x_test, y_test):
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(
        f"{name}: test accuracy {100 * accuracy:.1f} % at a proven epsilon of "
        f"{private.ledger.epsilon():.3f}"
    )


if __name__ == "__main__":
    main()
