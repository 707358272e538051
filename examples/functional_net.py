"""FunctionalNet on digits: all layers in ten passes over the records.

    python examples/functional_net.py

Then what its ten rounds cost together, by every composition theorem.
"""

import keras
import numpy as np

import keras_fm as fm

BUDGET = fm.PrivacyBudget(epsilon=8.0, delta=1e-5)


def build():
    # What the output layer would learn first: one class of ten.
    rare = keras.initializers.Constant(-np.log(9))
    model = fm.models.FunctionalNet(
        (64,),
        [
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.Dense(10, bias_initializer=rare),
        ],
        rounds=10,
        # Every record centred and of norm 8, by itself.
        below=[
            keras.layers.LayerNormalization(center=False, scale=False),
            fm.layers.NormalizationLayer(),
            keras.layers.Rescaling(8.0),
        ],
    )
    model.compile("sgd", metrics=["accuracy"])
    return model


def main():
    keras.utils.set_random_seed(0)
    (x, y), (x_test, y_test) = fm.datasets.load("digits")
    x, x_test = x.reshape(-1, 64), x_test.reshape(-1, 64)
    model = build()
    private = fm.callbacks.PrivateModel(BUDGET, data=(x, y))
    model.fit(x, y, callbacks=[private], verbose=0)
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"test accuracy {100 * accuracy:.1f} %")
    print(private.report())
    plan = fm.composition.Plan.of_ledger(private.ledger)
    print(fm.composition.table(fm.composition.compose(plan, BUDGET.delta)))


if __name__ == "__main__":
    main()
