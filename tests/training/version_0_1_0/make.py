"""Writes the files of this folder. Run it with version 0.1.0 installed.

python make.py
"""

import pathlib

import keras
import numpy as np

import keras_fm as fm

FOLDER = pathlib.Path(__file__).parent
BUDGET = fm.PrivacyBudget(2.0, 1e-5)
GENERATOR = np.random.default_rng(0)
N = 120
Y = np.arange(N) % 3
X = GENERATOR.random((N, 6)).astype("float32")
IMAGES = GENERATOR.random((N, 8, 8, 1)).astype("float32")


def stack(*layers):
    return keras.Sequential([keras.Input((6,)), *layers])


def main():
    layers, models = fm.layers, fm.models
    unit = layers.NormalizationLayer
    made = {
        "dense": stack(unit(), layers.PrivateDense(3)),
        "rounds": stack(unit(), layers.PrivateDense(3, rounds=3)),
        "scaling": stack(
            layers.RelevanceScaling(), unit(), layers.PrivateDense(3)
        ),
        "pca": stack(unit(), layers.DPPCA(4), unit(), layers.PrivateDense(3)),
        "dpa": models.DeepPrivateAutoencoder((6,), hidden=(4,), units=3),
        "pcdbn": models.PrivateCDBN((8, 8, 1), 3, maps=((3, 3),), dense=0),
        "functional_net": models.FunctionalNet(
            (6,),
            [
                keras.layers.Dense(4, activation="sigmoid"),
                keras.layers.Dense(3),
            ],
            rounds=2,
        ),
    }
    golden = {"x": X, "img": IMAGES}
    for name, model in made.items():
        x = IMAGES if name == "pcdbn" else X
        own = name == "functional_net"
        model.compile("sgd", None if own else fm.losses.TaylorCrossEntropy())
        private = fm.callbacks.PrivateModel(BUDGET, data=(x, Y))
        model.fit(x, Y, callbacks=[private], verbose=0)
        model.save(FOLDER / f"{name}.keras")
        golden[name] = model.predict(x, verbose=0)
    model = models.DPMAC((6,), [keras.layers.Dense(3)], clip=0.5, z_steps=1)
    model.compile("sgd")
    private = fm.callbacks.PrivateModel(
        BUDGET, ledger=FOLDER / "dpmac_ledger.json", planned_steps=12
    )
    batches = fm.datasets.PoissonBatches(X, Y, batch_size=20)
    model.fit(batches, callbacks=[private], verbose=0)
    model.save(FOLDER / "dpmac.keras")
    golden["dpmac"] = model.predict(X, verbose=0)
    np.savez(FOLDER / "golden.npz", **golden)


if __name__ == "__main__":
    main()
