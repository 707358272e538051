"""DP-SGD and how it is tuned: one rule for every comparison, of every size.

Its learning rate and number of steps are chosen for each epsilon on the last
fifth of the training records. What that choice costs in privacy is not
charged to it.
"""

from keras_fm.lab import baselines, known

# Large Poisson batches, a small clip and momentum are what Tramer and
# Boneh 2021 publish for DP-SGD on features.
_BATCHES_PER_EPOCH = 4
_CLIP = 0.1
# Rates to begin with; the search goes on past an end that is best.
RATES = {"sgd": (4.0, 16.0, 64.0), "adam": (1e-3, 4e-3, 16e-3)}
STEPS = (100, 400)
# Below every table.
UNCHARGED = (
    "Rate and steps of DP-SGD and noisy steps: chosen on a fifth of the "
    "training part, uncharged."
)
_FACTOR = 4.0
_MOST_EXTENSIONS = 4


def available():
    """Whether tensorflow-privacy can train here."""
    return known.runs_here(("tensorflow_privacy", "tf_keras"), "tensorflow")


def config(n, learning_rate, steps=100, optimizer="sgd", batch_size=None):
    """Settings of a `DPSGDConfig` for `n` records."""
    return {
        "learning_rate": float(learning_rate),
        "l2_norm_clip": _CLIP,
        "batch_size": max(1, min(batch_size or n, n // _BATCHES_PER_EPOCH)),
        "sampling": "poisson",
        "momentum": 0.9,
        "steps": int(steps),
        "optimizer": optimizer,
    }


def search(score, rates, steps):
    """The best rate for every number of steps, its ends extended until
    interior.

    Args:
        score: function of a rate and a number of steps.
        rates: increasing, a constant factor apart.
        steps: numbers of steps; the rates of the second and later ones
            start at the best of the one before and a factor below it.

    Returns:
        dict from numbers of steps to `(score, rate)`.
    """
    found = {}
    for count in steps:
        scores = {rate: score(rate, count) for rate in rates}
        for _ in range(_MOST_EXTENSIONS):
            best = max(scores, key=scores.get)
            if best == max(scores):
                scores[best * _FACTOR] = score(best * _FACTOR, count)
            elif best == min(scores):
                scores[best / _FACTOR] = score(best / _FACTOR, count)
            else:
                break
        best = max(scores, key=scores.get)
        found[count] = scores[best], best
        rates = (best / _FACTOR, best)
    return found


def tune(fit, x, y, *, optimizer="sgd", batch_size=None, choices=()):
    """Settings chosen on the last fifth of the training records.

    Args:
        fit: function of settings, records and labels to a fitted rival. If
            it has a method `prepare`, that is called once, with the records
            that are trained on: it returns a function of records to what the
            rivals see, and the `fit` for this.
        x, y: the training records and labels.
        optimizer: `"sgd"` or `"adam"`.
        batch_size: expected batch, at most a fourth of the records; `None`
            for that fourth.
        choices: settings to choose from in the place of the rule's own.

    Returns:
        settings by number of steps, the best ones first.
    """
    cut = len(x) * 4 // 5
    seen, held_out = x[:cut], x[cut:]
    if prepare := getattr(fit, "prepare", None):
        see, fit = prepare(seen)
        seen, held_out = see(seen), see(held_out)

    def accuracy(settings):
        rival = fit(settings, seen, y[:cut])
        return rival.evaluate(held_out, y[cut:])["accuracy"]

    def of(rate, steps):
        return config(len(x), rate, steps, optimizer, batch_size)

    if choices:
        ordered = sorted(choices, key=accuracy, reverse=True)
        return [dict(c) for c in ordered]
    found = search(
        lambda rate, steps: accuracy(of(rate, steps)), RATES[optimizer], STEPS
    )
    ordered = sorted(found, key=lambda steps: -found[steps][0])
    return [of(found[steps][1], steps) for steps in ordered]


def fitting(build, epsilon, delta, *, classes=None):
    """`fit` for `tune`: tensorflow-privacy on what `build()` makes, or on a
    linear model without."""

    def fit(settings, x, y):
        rival = baselines.DPSGDClassifier(
            build() if build else None,
            baselines.DPSGDConfig(**settings),
            epsilon=epsilon,
            delta=delta,
        )
        return rival.fit(x, y, num_classes=classes)

    return fit
