"""Audit trainings of your own: canaries, a control, a lower bound.

    python examples/audit_your_model.py

Two trainings with the same ledger, "proven epsilon 1", are attacked in the
same way. The first keeps its word. In the second the layers below were trained
on the same records and then frozen: public by declaration, but not in truth,
which no accountant can see.
"""

import keras

import keras_fm as fm

BUDGET = fm.PrivacyBudget(epsilon=1.0, delta=1e-5)


def random_layers():
    """What is below the output layer. Wide enough to learn by heart."""
    start = keras.initializers.RandomNormal(stddev=0.5)
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(512, "tanh", kernel_initializer=start),
            keras.layers.Dense(32),
        ]
    )


def network(below, unprotected=False):
    return keras.Sequential(
        [
            keras.Input((64,)),
            below,
            keras.layers.UnitNormalization(),
            fm.layers.PrivateDense(10, unprotected=unprotected),
        ]
    )


def without_privacy(x, y, epochs):
    """The control, and what the mistake below begins with."""
    model = network(random_layers(), unprotected=True)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=256, epochs=epochs, verbose=0)
    return model


def private_on(below, x, y):
    """The output layer learns from one release: `(model, ledger)`."""
    below.trainable = False
    model = network(below)
    private = fm.callbacks.PrivateModel(
        BUDGET, data=(x, y), guarantee=fm.Proven(neighbours="replace_one")
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    model.fit(x, y, batch_size=256, callbacks=[private], verbose=0)
    return model, private.ledger


def main(records=1437, epochs=60, seeds=(0,), picture=None):
    (x, y), _ = fm.datasets.load("digits")
    data = x[:records].reshape(-1, 64), y[:records]

    def control(x, y):
        return without_privacy(x, y, epochs)

    def right(x, y):
        return private_on(random_layers(), x, y)

    def wrong(x, y):
        return private_on(without_privacy(x, y, epochs).layers[0], x, y)

    reports = {}
    for name, fit in (("random layers", right), ("trained layers", wrong)):
        # `fit` is given arrays with canaries in them, and nothing else: what
        # is audited is your training as it is.
        report = fm.audit(
            fit,
            data,
            control=control,
            classes=10,
            seeds=seeds,
            progress=False,
        )
        print(f"== {name}\n{report.text()}")
        reports[name] = report
    if picture:
        reports["trained layers"].plot(picture)
    return reports


if __name__ == "__main__":
    main(picture="audit.png")
