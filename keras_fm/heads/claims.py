"""The papers' own noise scale of an output layer: claimed, never proven."""

import keras

from keras_fm.heads.taylor_cross_entropy import TaylorCrossEntropy
from keras_fm.parts.step import replace_one_factor

# Of a loss that is a mean over the batch, as the noise is.
_MEANS = ("sum_over_batch_size", "mean")

CROSS_ENTROPY_REASON = (
    "none. The features under the layer are trained on the private records, "
    "so the coefficients change at every step, and every step reads the "
    "exact coefficients of its batch; see docs/guarantees.md"
)


def cross_entropy_sensitivity(features, outputs, *, neighbours):
    """Delta_F = M (b + b^2 / 4) of the Taylor cross-entropy's coefficients.

    L1 norm, features in [0, 1]^b, as printed (dPA Lemma 3, AdLM Lemma 5);
    half of it for add_remove.

    Example:

    >>> cross_entropy_sensitivity(25, 10, neighbours="replace_one")
    1812.5
    """
    full = float(outputs * (features + features**2 / 4))
    return full * replace_one_factor(neighbours)


def check_loss(
    model,
    kind=TaylorCrossEntropy,
    instead="keras_fm.losses.TaylorCrossEntropy()",
):
    """Refuses a compiled loss that the claimed sensitivity is not of.

    Args:
        model: a compiled model.
        kind: class of the loss that the paper perturbs.
        instead: code that makes one.

    Raises:
        ValueError: saying what to compile with.
    """
    losses = keras.tree.flatten(model.loss)
    weights = getattr(model._compile_loss, "_user_loss_weights", None)
    (loss,) = losses if len(losses) == 1 else (None,)
    if (
        type(loss) is kind
        and loss.reduction in _MEANS
        and getattr(loss, "form", "cross_entropy") == "cross_entropy"
        and weights is None
    ):
        return
    more = "" if weights is None else f", loss_weights={weights}"
    reduction = getattr(loss, "reduction", None)
    if type(loss) is kind and reduction not in _MEANS:
        more += f", reduction={reduction!r}"
    raise ValueError(
        f"`loss` must be `{instead}`: the sensitivity that the paper claims "
        "is that of its coefficients, over the mean of a batch. Write "
        f"`model.compile(optimizer, loss={instead})`, without "
        f"`loss_weights`. Received: loss={model.loss!r}{more}"
    )
