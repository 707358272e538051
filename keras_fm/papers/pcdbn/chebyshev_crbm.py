import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.papers.pcdbn import claims, filters
from keras_fm.papers.pcdbn.convolutional_energy import ConvolutionalEnergy
from keras_fm.papers.pcdbn.patch_moments import PatchMomentQuery
from keras_fm.parts import layer_arguments
from keras_fm.parts.step import NOISE, Step
from keras_fm.public import polynomials

POLYNOMIALS = ("chebyshev", "taylor", "piecewise", "published", "exact")
NORMALIZATIONS = ("local", "batch", "constant")
VISIBLE = ("binary", "gaussian")
SENSITIVITIES = ("paper", "code")
# Numbers that a moment tensor may have; one more and it fits no memory.
_MAX_MOMENTS = 50_000_000
# Values of patches held at once: arrays that memory is kept for.
_CHUNK = 2**20


@keras.saving.register_keras_serializable(package="keras_fm")
class ChebyshevCRBM(ConvolutionalEnergy):
    """Convolutional RBM whose activation is a low-degree polynomial (pCDBN).

    With x = W * v + b (one map for each filter, cross-correlation), the
    denominator Z and X = x / Z in [-1, 1], the layer outputs

        P(h = 1 | v) = clip(sum_l alpha_l X^l, 0, 1),

    alpha the coefficients of a polynomial that stands for
    `sigmoid(gain X)`. A record's energy, with these probabilities in the
    place of sampled states, is

        E(v) = - sum_k sum_ij P(h^k_ij | v) x^k_ij - c . v.

    It trains under a `keras_fm.callbacks.PrivateModel`, and without it refuses
    to train.

    Proven (`trainable=False`, the default): the filters are functions of a
    release. With Z a public constant, the energy's only coefficients that
    depend on records are the moments of patches u = [v - centre; constant]
    of order `moment_order`; they are released once, averaged over the
    positions of a record, and filters of unit norm, orthogonal to each
    other, are learned from them (`keras_fm.filters.learn`).

    Published (`trainable=True`): contrastive divergence on the records at
    every step (`keras_fm.models.EnergyModel`), with fixed Laplace noise on
    the coefficients alpha of every map (Phan et al. 2017, Lemma 2), or noise
    drawn again at every step (the authors' code). That is claimed, not
    proven. With `unprotected=True` this is CDBN (`polynomial="exact"`) or
    TCDBN, without noise and not private.

    Args:
        filters: int, number of maps.
        kernel_size, strides: int or pair.
        padding: `"same"` or `"valid"`; pads with `centre`.
        polynomial: `"chebyshev"`, `"taylor"`, `"piecewise"` (of `degree`
            pieces), `"published"` (the paper's L = 7 polynomial, near
            `sigmoid(5 X)`), or `"exact"`.
        degree: int L.
        gain: float > 0, see above; 1 is the paper's.
        normalization: Z. `"local"`: max(|x|, (q + a sum x'^2)^beta) over the
            `size` maps around, at the same position; `"batch"`: the largest
            |x| of the batch (the authors' code); `"constant"`: `scale`, with
            X clipped to [-1, 1].
        scale: `None` (the largest |x| of unit filters, `patch_bound`), or
            the constant Z, also that of the released energy.
        size, q, a, beta: of `"local"`.
        visible: `"binary"` (values in [0, 1]) or `"gaussian"` (unit
            variance; adds |v - centre - c|^2 / 2 in the place of -c . v).
        conditions: int, length of a second input, which acts through dynamic
            biases of hidden and visible units (Eqs. 25 and 26); 0 for none.
        noise: `"once"` or `"per_step"`, of the published form.
        sensitivity: `"paper"` or `"code"`, of the published form, see
            `claims.energy_sensitivity`.
        bounds: public `(low, high)` of the inputs, for `sensitivity`.
        moment_order: 2 or 4, of the proven form: the released energy has
            degree `moment_order - 1` in place of `degree`.
        patch_bound: public L2 bound of `v - centre` of a patch; `None` for a
            tenth of the patch's farthest corner. Longer patches are scaled
            back at a release, so it may be chosen freely.
        clip: whether the layer scales longer patches back as well, as local
            contrast normalisation does: x then is what the released energy
            is made of.
        standardize, sparsity: of the proven form: whether responses are
            brought to unit variance, and how many standard deviations above
            its mean a unit is half active, see `keras_fm.filters.learn`.
        moment_strides: of the proven form: `None` (`strides`), or the steps
            between the patches that a release averages over.
        centre: public constant subtracted from the inputs.

    Input shape: `(batch, height, width, channels)`, or a list of that and
    `(batch, conditions)`. Output shape: `(batch, new_height, new_width,
    filters)`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = ChebyshevCRBM(4, 5)
    >>> layer(np.zeros((2, 28, 28, 1), "float32")).shape
    (2, 28, 28, 4)
    """

    claim_reason = claims.ENERGY_REASON
    _view = "EnergyModel"

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "same",
        polynomial: str = "chebyshev",
        degree: int = 7,
        gain: float = 1.0,
        normalization: str | None = "local",
        scale: float | None = None,
        size: int = 5,
        q: float = 2.0,
        a: float = 1e-4,
        beta: float = 0.75,
        visible: str = "binary",
        conditions: int = 0,
        noise: str = "once",
        sensitivity: str = "paper",
        bounds: tuple[float, float] = (0.0, 1.0),
        moment_order: int = 2,
        patch_bound: float | None = None,
        clip: bool = False,
        standardize: bool = True,
        sparsity: float = 1.5,
        moment_strides: int | Sequence[int] | None = None,
        centre: float = 0.0,
        trainable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.filters = checks.count("filters", filters)
        self.kernel_size = layer_arguments.pair("kernel_size", kernel_size)
        self.strides = layer_arguments.pair("strides", strides)
        self.degree = checks.count("degree", degree)
        moment_order = checks.count("moment_order", moment_order)
        self.moment_order = checks.one_of("moment_order", moment_order, (2, 4))
        self.padding = checks.one_of("padding", padding, ("same", "valid"))
        self.polynomial = checks.one_of("polynomial", polynomial, POLYNOMIALS)
        self.normalization = checks.one_of(
            "normalization", normalization, NORMALIZATIONS
        )
        self.visible = checks.one_of("visible", visible, VISIBLE)
        self.noise = checks.one_of("noise", noise, NOISE)
        self.sensitivity = checks.one_of(
            "sensitivity", sensitivity, SENSITIVITIES
        )
        gain = checks.number("gain", gain)
        self.gain = checks.number("gain", gain, at_least=1e-3, at_most=100)
        self.q = checks.norm_bound("q", q)
        self.a = checks.norm_bound("a", a)
        self.beta = checks.norm_bound("beta", beta)
        self.scale = checks.optional(checks.norm_bound, "scale", scale)
        self.patch_bound = checks.optional(
            checks.norm_bound, "patch_bound", patch_bound
        )
        if polynomial == "published" and gain != 1:
            raise ValueError(
                "The published polynomial has its own steepness (that of "
                f"sigmoid(5 X)): leave `gain` at 1. Received: gain={gain}"
            )
        self.centre = checks.number("centre", centre)
        self.sparsity = checks.number("sparsity", sparsity)
        self.conditions = checks.natural("conditions", conditions)
        low, high = (float(b) for b in bounds)
        bounds_lib.check_bounds(low, high)
        self.bounds = (low, high)
        self.size = layer_arguments.odd("size", size)
        self.clip, self.standardize = bool(clip), bool(standardize)
        self.moment_strides = checks.optional(
            layer_arguments.pair, "moment_strides", moment_strides
        )
        self._approximation = self._make_approximation()

    def _make_approximation(self):
        if self.polynomial == "exact":
            return None
        if self.polynomial == "published":
            return polynomials.published(self.degree)
        make = getattr(polynomials, self.polynomial)
        return make("sigmoid", self.degree, self.gain)

    # Published -----------------------------------------------------------

    @property
    def is_published(self):
        return self.trainable or self.is_perturbed

    @property
    def noise_shapes(self):
        """One value for every coefficient of every map's polynomial."""
        powers = self.degree
        if self.polynomial == "piecewise":
            powers = 1  # value and slope
        return {"coefficient_noise": (powers + 1, self.filters)}

    def claimed_sensitivity(self, neighbours):
        """Delta of Lemma 2, see `claims.energy_sensitivity`.

        Raises:
            ValueError: if there is no polynomial to perturb.
        """
        if self.polynomial == "exact":
            raise ValueError(
                f"The energy of layer '{self.name}' has no coefficients to "
                'perturb with polynomial="exact": choose another.'
            )
        return claims.energy_sensitivity(
            self.scaled(self._largest_coefficients()),
            form=self.sensitivity,
            positions=math.prod(self.map_shape),
            patch=self.patch_size,
            bound=max(abs(b - self.centre) for b in self.bounds),
            visible=math.prod(self.record_shape)
            * max(abs(b) for b in self.bounds),
            normalization=(self.q, self.a, self.beta)
            if self.normalization == "local"
            else None,
            neighbours=neighbours,
        )

    def _largest_coefficients(self):
        """Of the polynomial, or of all the pieces of a piecewise one."""
        if self.polynomial != "piecewise":
            return self._approximation.coefficients
        knots, values = self._approximation.knots, self._approximation.values
        slopes = np.diff(values) / np.diff(knots)
        starts = np.asarray(values[:-1]) - slopes * np.asarray(knots[:-1])
        return float(np.abs(starts).max()), float(np.abs(slopes).max())

    @property
    def claim_reads(self):
        how = "fixed" if self.noise == "once" else "drawn again at every step"
        return (
            "every record at every step, in both phases of contrastive "
            f"divergence; noise ({how}) on the coefficients of the energy"
        )

    def noise_of(self, scale, shape, laplace):
        if self.noise == "per_step":
            return np.full(shape, scale, np.float32)
        return super().noise_of(scale, shape, laplace)

    def fix_noise(self, **noise):
        super().fix_noise(**noise)
        if self.noise == "per_step":
            self._set_hidden_seed("seed_state")

    # Proven: filters from released moments --------------------------------

    @property
    def input_bound(self):
        """Public L2 bound on `v - centre` of a patch."""
        if self.patch_bound is not None:
            return float(self.patch_bound)
        farthest = max(abs(b - self.centre) for b in self.bounds)
        return farthest * math.sqrt(self.patch_size) / 10

    @property
    def constant(self):
        """The constant entry beside a patch: small where it adds to the
        sensitivity of what matters, as large as the patch where lower orders
        are read through it."""
        return self.input_bound / (3 if self.moment_order == 2 else 1)

    @property
    def moment_bound(self):
        """L2 bound on a patch with its constant entry."""
        return math.hypot(self.input_bound, self.constant)

    @property
    def energy_scale(self):
        """The constant Z: |x| of a unit filter never exceeds it."""
        return self.input_bound if self.scale is None else float(self.scale)

    @property
    def learning(self):
        """What `keras_fm.filters.learn` needs beside the release."""
        degree = self.moment_order - 1
        approximation = polynomials.chebyshev("sigmoid", degree, self.gain)
        return {
            "filters": self.filters,
            "coefficients": self.scaled(approximation.coefficients),
            "scale": self.energy_scale,
            "standardize": self.standardize,
            "sparsity": self.sparsity,
        }

    def release_names(self):
        return [f"{self.name} (patch moments)"]

    def default_shares(self, alike):
        # Few moments, each an average over many patches.
        return [0.05]

    def steps(self, reading):
        """The one release of the layer: the moments of its patches.

        Raises:
            ValueError: if the layer's form cannot be proven.
        """
        self.check_proven()
        read = reading.in_pieces(self)

        def learn(release):
            # Biases of visible units become 0: of all weights nothing may be
            # left that an earlier fit learned.
            self.set_filters(*filters.learn(release, **self.learning))
            reading.keep(self, release)

        (name,) = self.release_names()
        query = PatchMomentQuery(
            num_features=self.patch_size + 1,
            order=self.moment_order,
            feature_bound=self.moment_bound,
            constant=self.constant,
            **reading.privacy_unit,
        )
        return [
            Step(
                name=name,
                query=query,
                clip=True,
                read=partial(read, self.patches),
                learn=learn,
            )
        ]

    def check_proven(self):
        """Refuses what no release can teach.

        Raises:
            ValueError: naming what to change.
        """
        if self.conditions:
            raise ValueError(
                f"ChebyshevCRBM '{self.name}' has dynamic biases, whose "
                "weights only records could teach. In a proven model leave "
                "`conditions` at 0 and give the conditions to the layers "
                "above."
            )
        if self.normalization == "batch":
            raise ValueError(
                f"ChebyshevCRBM '{self.name}' divides by the largest response "
                "of a batch, which mixes records. Use "
                '`normalization="local"` or `"constant"`.'
            )
        p = self.patch_size + 1
        entries = math.comb(p + self.moment_order - 1, self.moment_order)
        if entries > _MAX_MOMENTS:
            raise ValueError(
                f"The order-{self.moment_order} moments of patches with "
                f"{p} entries are {entries} numbers. Use `moment_order=2`, "
                "smaller kernels or fewer channels below layer "
                f"'{self.name}'."
            )
        if self.filters > 2 * self.patch_size:
            raise ValueError(
                f"A patch of {self.patch_size} entries has at most "
                f"{2 * self.patch_size} filters. Received: "
                f"filters={self.filters}"
            )

    def patches(self, inputs, chunks=True):
        """Patches with their constant entry, what moments are taken of.

        Args:
            inputs: NumPy `(n, height, width, channels)`.
            chunks: whether few records come at a time, so that memory is
                bounded; else all at once.

        Yields:
            NumPy `(m, positions, patch_size + 1)`, patches longer than their
            bound scaled back.
        """
        strides = self.moment_strides or self.strides
        margins = self._margins(strides)
        inputs = np.asarray(inputs)
        positions = math.prod(
            -(-(size + sum(margin) - kernel + 1) // stride)
            for size, margin, kernel, stride in zip(
                self.record_shape, margins, self.kernel_size, strides
            )
        )
        rows = max(1, _CHUNK // (positions * (self.patch_size + 1)))
        rows = rows if chunks else max(1, len(inputs))
        for first in range(0, len(inputs), rows):
            v = inputs[first : first + rows].astype(np.float32)
            v -= self.centre
            v = np.pad(v, [(0, 0), *margins, (0, 0)])
            windows = np.lib.stride_tricks.sliding_window_view(
                v, self.kernel_size, axis=(1, 2)
            )[:, :: strides[0], :: strides[1]]
            # (n, i, j, channels, kh, kw) to the kernel's order.
            windows = np.moveaxis(windows, 3, -1)
            shape = len(v), positions, self.patch_size + 1
            found = np.empty(shape, np.float32)
            patch = found[..., :-1]
            place = patch.view()
            # Unlike `reshape` never a copy.
            place.shape = windows.shape
            place[...] = windows
            norms = np.sqrt(np.einsum("npk,npk->np", patch, patch))
            shrink = self.input_bound / np.maximum(norms, self.input_bound)
            patch *= (shrink * (1 - 1e-6))[..., None]
            found[..., -1] = self.constant
            yield found

    def set_filters(self, kernel, bias):
        """Filters and biases from those of patches.

        The biases of visible units, which only records could teach, become 0.

        Args:
            kernel: `(patch_size, filters)`, of `v - centre`.
            bias: `(filters,)`.

        Raises:
            ValueError: if the kernel has another shape.
        """
        if np.shape(kernel) != (self.patch_size, self.filters):
            raise ValueError(
                f"Filters must have shape {(self.patch_size, self.filters)}. "
                f"Received: shape={np.shape(kernel)}"
            )
        self.kernel.assign(np.reshape(kernel, tuple(self.kernel.shape)))
        self.bias.assign(bias)
        self.visible_bias.assign(np.zeros(self.visible_bias.shape))

    # Saving --------------------------------------------------------------

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "polynomial": self.polynomial,
            "degree": self.degree,
            "gain": self.gain,
            "normalization": self.normalization,
            "scale": self.scale,
            "size": self.size,
            "q": self.q,
            "a": self.a,
            "beta": self.beta,
            "visible": self.visible,
            "conditions": self.conditions,
            "noise": self.noise,
            "sensitivity": self.sensitivity,
            "bounds": self.bounds,
            "moment_order": self.moment_order,
            "patch_bound": self.patch_bound,
            "clip": self.clip,
            "standardize": self.standardize,
            "sparsity": self.sparsity,
            "moment_strides": self.moment_strides,
            "centre": self.centre,
        }
