"""What a measurement gives: one point, or a rival tuned by the one rule."""

from keras_fm.lab.engine import rival
from keras_fm.lab.engine.job import Measured
from keras_fm.lab.engine.training import Training, accuracy


def training(job, context, **kwargs):
    """The `Training` of a job, by the experiment's settings."""
    known = ("epochs", "pretraining_epochs", "learning_rate")
    given = {k: context[k] for k in known if k in context.settings}
    return Training(epsilon=job.epsilon, **{**given, **kwargs})


def lot(context, records):
    """The batch of the settings, at most a fourth of the records."""
    return min(context["lot"], max(1, records // 4))


def place(job):
    """Where a job stands on the axis of budgets, or of what is swept."""
    return job.epsilon if job.at is None else job.at


def point(job, score, ledger=None, **notes):
    """One number at the job's place."""
    return Measured(curve=((place(job), score),), ledger=ledger, notes=notes)


def scored(job, made, test):
    """The accuracy of a `Fitted` at the job's place."""
    score = accuracy(made.model, *test)
    return point(job, score, made.ledger)


def tuned(job, context, build, train, delta, most=None):
    """`fit` and the choices of DP-SGD for a job's epsilon, best ones first;
    they are made once in a run.

    Args:
        build: function that gives a fresh Keras model, or `None` for a
            linear one.
        train: `(x, y)`.
        delta: float.
        most: records of an expected batch, if fewer than a fourth.
    """
    # A network may have more outputs than these data have classes.
    classes = build().output_shape[-1] if build else int(train[1].max()) + 1
    fit = rival.fitting(build, job.epsilon, delta, classes=classes)
    choices = context.once(
        ("rival", job.epsilon, job.at),
        lambda: rival.tune(fit, *train, batch_size=most),
    )
    return fit, choices


def dp_sgd(job, context, build, train, test, delta, most=None):
    """DP-SGD of the best choice, at the job's place."""
    fit, choices = tuned(job, context, build, train, delta, most)
    made = fit(choices[0], *train)
    score = made.evaluate(*test)["accuracy"]
    return point(job, score, made.ledger, **_said(choices[0]))


def dp_sgd_curve(job, context, build, train, test, delta, most=None):
    """A training of its own for each number of steps, at its epochs; the
    ledger of the last, the only one that is published."""
    fit, choices = tuned(job, context, build, train, delta, most)
    curve, made = [], None
    for choice in sorted(choices, key=lambda c: c["steps"]):
        made = fit(choice, *train)
        epochs = choice["steps"] * choice["batch_size"] / len(train[0])
        curve.append((epochs, made.evaluate(*test)["accuracy"]))
    return Measured(curve=tuple(curve), ledger=made.ledger, notes=_said(choice))


def _said(choice):
    return {k: choice[k] for k in ("learning_rate", "steps", "batch_size")}
