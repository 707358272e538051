"""The loss of many reads: margin, cross-entropy, or what the first read says.

    python benchmarks/rounds_loss.py [--dataset=mnist] [--features=scattering]

Trains on the first `--records` training images and looks at the accuracy on
the `--held_out` that follow: test images are not read. Features are public; in
front of the 80 reads is the released second moment, as in `keras-fm compare
--methods=rounds_proven`. Beside the accuracies of a budget are both numbers
that `Rounds(loss="by_first_read")` looks at, here without noise.
"""

import numpy as np
from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_DATASET = flags.DEFINE_string("dataset", "mnist", "Of `keras_fm.datasets`.")
_FEATURES = flags.DEFINE_string("features", "scattering", "A public map.")
_UNITS = flags.DEFINE_integer("units", 800, "Features kept.")
_RECORDS = flags.DEFINE_integer("records", 20_000, "To train on.")
_HELD_OUT = flags.DEFINE_integer("held_out", 10_000, "To look at.")
_EPSILONS = flags.DEFINE_list("epsilons", "1,8", "Budgets, delta = 1e-5.")
_SEEDS = flags.DEFINE_integer("seeds", 2, "Draws of the noise.")

LOSSES = ("crammer_singer", "cross_entropy", "by_first_read")
CLIP = 0.1


def share(h, y, classes):
    """Squared length of the mean coefficient of cross-entropy at zero weights
    over the clip's."""
    residual = np.full((len(y), classes), 1 / classes)
    residual[np.arange(len(y)), y] -= 1
    length = np.linalg.norm(residual, axis=1) * np.linalg.norm(h, axis=1)
    residual *= np.minimum(1, CLIP / np.maximum(length, 1e-30))[:, None]
    return float(np.square(h.T @ residual / (len(y) * CLIP)).sum())


def main(argv):
    del argv
    import keras

    import keras_fm as fm
    from keras_fm.public import features

    results = ResultsFile(
        _OUT.value,
        "rounds_loss",
        ("dataset", "features", "units", "records", "epsilon", "loss", "seed"),
    )
    (x, y), _ = fm.datasets.load(_DATASET.value)
    last = min(len(x), _RECORDS.value + _HELD_OUT.value)
    if last <= _RECORDS.value:
        raise app.UsageError(f"--records must be below {last}, some held out.")
    x, y = x[:last], np.asarray(y[:last]).ravel()
    classes = int(y.max()) + 1
    h = features.extract(
        features.build(_FEATURES.value, x.shape[1:], units=_UNITS.value), x
    )
    seen = slice(0, _RECORDS.value)
    held = slice(_RECORDS.value, None)

    def trained(epsilon, loss):
        body = [
            fm.layers.DPPCA(h.shape[1], whitening=0.5),
            fm.layers.NormalizationLayer(),
        ]
        head = fm.layers.PrivateDense(
            classes,
            use_bias=False,
            rounds=fm.Rounds(reads=80, clip=CLIP, loss=loss),
        )
        model = keras.Sequential([keras.Input(h.shape[1:]), *body, head])
        private = fm.callbacks.PrivateModel(
            fm.PrivacyBudget(epsilon, 1e-5), data=(h[seen], y[seen])
        )
        model.compile("sgd", fm.losses.TaylorCrossEntropy())
        model.fit(h[seen], y[seen], callbacks=[private], verbose=0)
        logits = model.predict(h[held], batch_size=4096, verbose=0)
        white = keras.Sequential([keras.Input(h.shape[1:]), *body])
        white = white.predict(h[seen], batch_size=4096, verbose=0)
        found = share(white, y[seen], classes)
        return private.ledger, {
            "accuracy": float(np.mean(logits.argmax(1) == y[held])),
            "held_out": int(len(y[held])),
            "share": found,
            "share_times_m": found * h.shape[1],
        }

    for epsilon in map(float, _EPSILONS.value):
        for loss in LOSSES:
            for seed in range(_SEEDS.value):
                key = (_DATASET.value, _FEATURES.value, h.shape[1])
                key += (_RECORDS.value, epsilon, loss, seed)
                if not results.has(*key):
                    ledger, row = trained(epsilon, loss)
                    results.add(key, ledger, **row)


if __name__ == "__main__":
    app.run(main)
