"""AdLM's own noise scales: claimed, never proven."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from keras_fm.core import layer_arguments
from keras_fm.core.planned_release import replace_one_factor
from keras_fm.kernel import checks
from keras_fm.papers.paper_model import PaperOrCode

AFFINE_REASON = (
    "none. The paper's proof treats the sum of the batch's inputs as the "
    "release, while the network consumes each input plus one shared vector "
    "through nonlinear layers; see docs/guarantees.md"
)

RELEVANCE_REASON = (
    "none. The network whose relevance is averaged was itself trained on "
    "the private records without noise; see docs/guarantees.md"
)

ARCHITECTURES = ("dense", "mnist", "cifar10")


@keras.saving.register_keras_serializable(package="keras_fm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedAdLM(PaperOrCode):
    """Settings of the published AdLM and ILM (form, noise, architecture).

    Their epsilon is claimed by the paper, not proven. Pass them to
    `keras_fm.models.AdaptiveLaplace(guarantee=...)`, or for a model of your
    own to `keras_fm.Published(lot=..., settings=...)`.

    Args:
        form: `"paper"`, as printed: sensitivity 2 |h0| d, noise drawn once;
            the model has local response normalisation, and min-max
            normalisation before the output. `"code"`, as the authors' code:
            sensitivity positions x patch, noise drawn at every step,
            perturbed inputs clipped to [-10, 10]; the model has batch
            normalisation, and clipping before the output.
        noise: `None` (as `form` has it), `"once"` or `"per_step"`.
        adaptive: `True` if the noise of a feature follows its relevance
            (AdLM), `False` if every feature has the same scale (ILM).
        relevance_of: the trained network that gives the relevance, such as
            `keras_fm.models.unprotected_twin(model)`; makes `adaptive` true.
            Not saved.
        feature_map: `None`, or the `(height, width)` that the authors' code
            counts as positions in the sensitivity of a convolution. The
            authors count a map after pooling (14 x 14 for MNIST).
        architecture: for `AdaptiveLaplace`: `"dense"` (one hidden layer),
            `"mnist"` (convolutions 5x5x32 and 5x5x64, dense 25) or
            `"cifar10"` (3x3x128, 5x5x128, 5x5x256, dense 30).
        width: float > 0, multiplies the number of maps of the convolutional
            architectures; 1 is the paper's size.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> PublishedAdLM(form="code").noise_per_step
    True
    """

    adaptive: bool = False
    relevance_of: Any = None
    feature_map: Any = None
    architecture: str = "dense"
    width: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        checks.one_of("architecture", self.architecture, ARCHITECTURES)
        checks.number("width", self.width, above=0)
        if self.relevance_of is not None:
            object.__setattr__(self, "adaptive", True)
        if self.feature_map is not None:
            pair = layer_arguments.pair("feature_map", self.feature_map)
            object.__setattr__(self, "feature_map", pair)

    def get_config(self):
        config = super().get_config()
        del config["relevance_of"]
        return config


def relevance_sensitivity(features, records, *, neighbours):
    """AdLM's Delta_R = 2 d / |D| of the average relevance.

    It is an L1 norm. Every record's relevance is min-max normalised to
    [0, 1]^d, as printed (Phan et al. 2017, Lemma 2). Half for add_remove.

    Example:

    >>> round(relevance_sensitivity(784, 60_000, neighbours="replace_one"), 9)
    0.026133333
    """
    return 2.0 * features / records * replace_one_factor(neighbours)


def affine_sensitivity(units, inputs, *, neighbours):
    """AdLM's Delta_h0 = 2 |h0| d for a first layer of `units` and `inputs`.

    It is an L1 norm, for inputs in [0, 1]^d, as printed (Phan et al. 2017,
    Lemma 4). Half for add_remove.

    Example:

    >>> affine_sensitivity(32, 784, neighbours="replace_one")
    50176.0
    """
    return 2.0 * units * inputs * replace_one_factor(neighbours)


def convolution_sensitivity(
    *, form, filters, positions, patch, inputs, neighbours
):
    """Delta_h0 of a convolutional first layer.

    * `"paper"`: 2 |h0| d with |h0| = filters x positions neurons and d
      inputs, as printed.
    * `"code"`: 2 x positions x patch, as the authors' code computes it
      (2 * 14 * 14 * 25 for MNIST, 2 * 10 * 10 * 9 * 3 for CIFAR-10).

    Args:
        form: `"paper"` or `"code"`.
        filters: number of feature maps.
        positions: height x width of one feature map.
        patch: entries of one filter, input channels included.
        inputs: entries of one record.
        neighbours: the papers' `"replace_one"`; half for `"add_remove"`.

    Example:

    >>> convolution_sensitivity(
    ...     form="code", filters=32, positions=196, patch=25, inputs=784,
    ...     neighbours="replace_one",
    ... )
    9800.0
    """
    if form == "paper":
        return affine_sensitivity(
            filters * positions, inputs, neighbours=neighbours
        )
    return 2.0 * positions * patch * replace_one_factor(neighbours)


def normalised_relevance(relevance):
    """Each row, min-max normalised to [0, 1] (AdLM Eq. 7). A constant row
    becomes zero."""
    rows = np.asarray(relevance, np.float64)
    low = rows.min(axis=1, keepdims=True)
    spread = rows.max(axis=1, keepdims=True) - low
    return np.where(spread > 0, (rows - low) / np.where(spread, spread, 1), 0.0)


def adaptive_epsilons(relevance, epsilon, floor):
    """eps_j = beta_j eps2 with beta_j = d |R_j| / sum |R| (AdLM line 6).

    Args:
        relevance: noisy average relevance R, of any shape with d entries.
        epsilon: eps2, the budget of the first layer.
        floor: float > 0, replaces a smaller |R_j|: a feature with eps_j = 0
            would need infinite noise. The authors' code uses 1e-5.

    Example:

    >>> adaptive_epsilons(np.array([0.3, -0.1]), 1.0, floor=1e-5)
    array([1.5, 0.5])
    """
    size = np.maximum(np.abs(np.asarray(relevance, np.float64)), floor)
    return epsilon * size * (size.size / math.fsum(size.ravel()))
