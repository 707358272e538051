"""Many fits on one release at once.

Training on a release reads no record, so starts, learning rates, ridges and
optimizers may be tried at will: no data pass and no privacy is spent on it.
Here they descend side by side, a step of all of them one product of matrices.

Which of them to keep may follow the released loss, a rule, or public data.
Records of the release may decide it by `keras_fm.evaluation.private_choice`
only: that reads them again.
"""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.parts.record_optimizer import RecordOptimizer

# Its steps are no multiples of the learning rate.
_UNSCALED = keras.optimizers.Ftrl


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """What `sweep` found, for O optimizers, S starts, L learning rates and R
    ridges.

    Attributes:
        weights: `(O, S, L, R, m, M)` float64, the bias in the last row (see
            `PrivateDense.learn(..., start=weights)`).
        losses: `(O, S, L, R)`, the released objective per record with the
            ridge of the run: comparable along all axes but the last.
        minima: `(R,)`, the least there is for each ridge.
    """

    weights: np.ndarray
    losses: np.ndarray
    minima: np.ndarray


def sweep(
    release,
    starts,
    learning_rates,
    ridge_factors=(0.5,),
    optimizers=("sgd",),
    *,
    steps,
    bias_feature=None,
):
    """Trains on a release from all starts, at all learning rates, for all
    ridges and with all optimizers.

    Equal, but for float32 rounding, to fits of a
    `keras_fm.layers.PrivateDense` by `steps` steps each.

    Args:
        release: of the objective of a `PrivateDense` that is read once.
        starts: `(S, m, M)` weights, the bias in the last row.
        learning_rates: `(L,)`, each > 0.
        ridge_factors: `(R,)`, in units of the noise's spectral edge, see
            `QuadraticRelease.minimise`.
        optimizers: names, configs or instances of Keras optimizers that move
            every entry on its own and in proportion to the learning rate
            (SGD, Adam, RMSprop, Adagrad, Adadelta, Adamax, Lion); their own
            learning rates are not used.
        steps: int, for each run.
        bias_feature: that of the layer, whose fits descend in its bias, the
            last row times this; `None` for a layer without bias.

    Returns:
        A `Sweep`. A run that diverged has weights and losses that are not
        finite.

    Raises:
        ValueError: if an argument is outside its range, or an optimizer is
            another.

    Example:

    >>> found = sweep(
    ...     release, np.zeros((1, 65, 10)), [0.1, 1.0], steps=200,
    ...     optimizers=["adam", keras.optimizers.SGD(momentum=0.9)],
    ...     bias_feature=layer.bias_feature,
    ... )
    >>> found.losses.shape
    (2, 1, 2, 1)
    """
    if not hasattr(release, "estimated_records"):
        raise ValueError(
            "`release` must be one of a PrivateDense objective, read once. "
            f"Received: {type(release).__name__}"
        )
    starts = np.asarray(starts, np.float64)
    if starts.ndim != 3 or starts.shape[1:] != release.linear.shape:
        raise ValueError(
            f"`starts` must have shape (starts, {release.linear.shape[0]}, "
            f"{release.linear.shape[1]}). Received: shape={starts.shape}"
        )
    checks.all_finite(starts=starts)
    rates = _positive("learning_rates", learning_rates, zero=False)
    factors = _positive("ridge_factors", ridge_factors, zero=True)
    steps = checks.count("steps", steps)
    m, outputs = release.linear.shape
    units = np.ones(m)
    if bias_feature is not None:
        units[-1] = checks.norm_bound("bias_feature", bias_feature)
    movers = [_of_rate_one(optimizer) for optimizer in optimizers]

    # Per record, as a layer has it, and as distances from the minima.
    n = release.estimated_records()
    scale = 2 * release.query.curvature / n
    positive, ridges, minimisers = release.ridge_family(factors)
    apart = (starts[:, None, None] - minimisers) * units[:, None]
    apart = np.broadcast_to(
        apart, (len(starts), len(rates), len(factors), m, outputs)
    )
    shape = apart.shape[:3]
    # `(m, runs, M)`: one product of two matrices takes a step of all runs.
    apart = apart.reshape(-1, m, outputs).transpose(1, 0, 2)

    def spread(values, axis):
        view = [1, 1, 1]
        view[axis] = -1
        runs = np.broadcast_to(np.reshape(values, view), shape)
        return _tensor(runs.reshape(1, -1, 1))

    begin = _tensor(apart)
    hessian = _tensor(scale * positive / units / units[:, None])
    rate, ridge = spread(rates, 1), spread(scale * ridges, 2)
    square = _tensor(1 / units[:, None, None] ** 2)

    def gradients(moved):
        (moved,) = moved
        here = begin + rate * moved
        flat = ops.reshape(here, (m, -1))
        steep = ops.reshape(ops.matmul(hessian, flat), ops.shape(here))
        return [steep + ridge * square * here]

    weights, losses = [], []
    minima = _minima(release, n, positive, ridges, minimisers)
    for mover in movers:
        (moved,) = mover.minimize(gradients, [ops.zeros_like(begin)], steps)
        here = ops.convert_to_numpy(begin + rate * moved)
        here = here.astype(np.float64).transpose(1, 0, 2)
        here = here.reshape(*shape, m, outputs) / units[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            curved = np.matmul(positive, here)
            curved += ridges[:, None, None] * here
            excess = np.einsum("...ij,...ij->...", here, curved)
        weights.append(here + minimisers)
        losses.append(scale / 2 * excess + minima)
    return Sweep(
        weights=np.stack(weights), losses=np.stack(losses), minima=minima
    )


def _minima(release, n, positive, ridges, minimisers):
    """The released objective per record at the minimum, for each ridge."""
    linear = release.query.linear_coefficients(release.linear)
    curved = positive @ minimisers + ridges[:, None, None] * minimisers
    curved = np.einsum("rij,rij->r", minimisers, curved)
    sloped = np.einsum("ij,rij->r", linear, minimisers)
    return (sloped + release.query.curvature * curved) / n


def _of_rate_one(optimizer):
    """A `RecordOptimizer` whose moves are multiplied by each run's rate."""
    optimizer = keras.optimizers.get(optimizer)
    config = optimizer.get_config()
    if isinstance(optimizer, _UNSCALED) or isinstance(
        config["learning_rate"], dict
    ):
        raise ValueError(
            "`optimizers` must move in proportion to a constant learning "
            "rate: no Ftrl and no schedule. Received: "
            f"{type(optimizer).__name__} with learning_rate="
            f"{config['learning_rate']}"
        )
    config["learning_rate"] = 1.0
    return RecordOptimizer(type(optimizer).from_config(config), 1)


def _positive(name, values, zero):
    values = np.asarray(values, np.float64)
    least = values.min(initial=np.inf)
    if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values)):
        raise ValueError(
            f"`{name}` must be a list of finite numbers. Received: {values}"
        )
    if least < 0 or (least == 0 and not zero):
        bound = "at least 0" if zero else "greater than 0"
        raise ValueError(
            f"`{name}` must be {bound}. Received: {values.tolist()}"
        )
    return values


def _tensor(values):
    return ops.convert_to_tensor(values.astype("float32"))
