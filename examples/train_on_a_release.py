"""Publish a release; others train on the file, without the records.

    python examples/train_on_a_release.py

The holder of the records uses them once and publishes two files: the release
and the layers below it. Everybody else needs only those.
"""

import keras
import numpy as np

import keras_fm as fm

FEATURES, RELEASE = "digits_features.keras", "digits_release.npz"


def holder(epsilon):
    """Has the records. Reads them once, writes two public files."""
    (x, y), _ = fm.datasets.load("digits")
    features = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
            fm.layers.RandomFeatures(64, kind="fourier", scale=0.7),
            fm.layers.NormalizationLayer(),
        ]
    )
    # Without a bias, what is released has one row for each feature.
    model = keras.Sequential(
        [features, fm.layers.PrivateDense(10, use_bias=False)]
    )
    private = fm.callbacks.PrivateModel(
        epsilon=epsilon, delta=1e-5, data=(x, y)
    )
    model.compile("adam", loss=fm.losses.TaylorCrossEntropy())
    model.fit(x, y, callbacks=[private], verbose=0)
    print(private.report())
    features.save(FEATURES)
    private.release.save(RELEASE)


def somebody_else(steps):
    """Has two files and public digits to test on, no private record."""
    release = fm.Release.load(RELEASE)
    features = keras.saving.load_model(FEATURES)
    print(release)
    print(f"about {release.estimated_records():.0f} records, by the release")

    # An ordinary data set with the same Taylor cross-entropy as the release:
    # any optimizer, any number of steps, any regularizer.
    x, t = release.pseudo_records()
    accuracies = {}
    _, (x_test, y_test) = fm.datasets.load("digits")
    test = features.predict(x_test, verbose=0), y_test
    for name, optimizer, penalty in (
        ("Adam", keras.optimizers.Adam(0.05), 0.0),
        ("SGD with momentum", keras.optimizers.SGD(0.05, 0.9), 0.0),
        ("Adam, L2", keras.optimizers.Adam(0.05), 1e-3),
    ):
        layer = keras.layers.Dense(
            10,
            use_bias=False,
            kernel_regularizer=keras.regularizers.L2(penalty),
        )
        model = keras.Sequential([keras.Input(x.shape[1:]), layer])
        model.compile(optimizer, fm.losses.TaylorCrossEntropy())
        # All pseudo records in every step, so many steps in one epoch.
        model.fit(
            np.tile(x, (steps, 1)),
            np.tile(t, (steps, 1)),
            batch_size=len(x),
            shuffle=False,
            verbose=0,
        )
        found = model.predict(test[0], verbose=0).argmax(axis=1)
        accuracies[name] = 100 * float((found == test[1]).mean())
        print(f"{name:<18} test accuracy {accuracies[name]:.1f} %")
    return accuracies


def main(epsilon=4.0, steps=300):
    holder(epsilon)
    return somebody_else(steps)


if __name__ == "__main__":
    main()
