"""Scores of canaries from the outputs of a trained model."""

import numpy as np

from keras_fm.kernel import checks
from keras_fm.lab.auditing.canaries import (
    canary_losses,
    include_scores,
    swap_scores,
)

SCORES = ("loss", "margin", "gradient")
_BATCH = 4096
# Tolerance for sums of probabilities.
_TOLERANCE = 1e-4
# About the least positive float32.
_LEAST = 1e-38


def checked_score(score, y):
    """The name of a score, or of a score function."""
    if callable(score):
        return getattr(score, "__name__", type(score).__name__)
    if score not in SCORES:
        checks.refuse("score", score, f"one of {SCORES} or a function")
    if y is None:
        raise ValueError(
            f'`score="{score}"` needs labels. Without, pass a function '
            "(model, x, labels) that returns one loss for each record."
        )
    return score


def score_canaries(model, planted, score):
    """Scores of all canaries, and the number without finite outputs."""
    swap = planted.plan.design == "swap"
    x, labels = planted.canary_x, planted.canary_y
    if callable(score):
        columns = []
        for form in range(2 if swap else 1):
            records = x[:, form % x.shape[1]]
            own = None if labels is None else labels[:, form]
            columns.append(_array(score(model, records, own)))
        losses = np.stack(columns, axis=-1)
        if losses.shape[:-1] != (len(x),):
            raise ValueError(
                "`score` must return one loss for each canary, "
                f"({len(x)},). Received: shape={columns[0].shape}"
            )
        finite = np.isfinite(losses).all(axis=-1)
        losses = np.where(finite[:, None], losses, 0.0)
    elif score == "gradient":
        # Imported late: only this score needs Keras.
        from keras_fm.lab.auditing.gradient_score import gradient_losses

        losses = gradient_losses(model, x[:, 0], labels)
        finite = np.isfinite(losses).all(axis=-1)
        losses = np.where(finite[:, None], losses, 0.0)
    else:
        logits = _array(_outputs(model, x[:, 0]))
        if logits.ndim == 1:
            logits = logits[:, None]
        if logits.ndim != 2 or len(logits) != len(x):
            raise ValueError(
                "The trained model must give logits of shape (records, "
                f"classes). Received: shape={logits.shape} for {len(x)} "
                "records"
            )
        finite = np.isfinite(logits).all(axis=-1)
        logits = np.where(finite[:, None], logits, 0.0)
        losses = canary_losses(_logits(logits), labels, score)
    scores = swap_scores(losses) if swap else include_scores(losses)
    # Without an output the guess is blind: allowed, and right half of the time.
    return np.where(finite, scores, 0.0), int(np.sum(~finite))


def _logits(outputs):
    """Logits: the logarithms of outputs that are class probabilities, whose
    loss would saturate."""
    sums = np.sum(outputs, axis=1)
    if outputs.shape[1] == 1 or np.min(outputs) < 0:
        return outputs
    if np.max(np.abs(sums - 1)) > _TOLERANCE * outputs.shape[1]:
        return outputs
    return np.log(np.maximum(outputs, _LEAST))


def _outputs(model, x):
    predict = getattr(model, "predict", None)
    if predict is not None:
        return predict(x, batch_size=_BATCH, verbose=0)
    if not callable(model):
        raise ValueError(
            "`fit` and `control` must return a Keras model or a function "
            f"from records to logits. Received: {type(model).__name__}"
        )
    return model(x)


def _array(values):
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values, np.float64)
