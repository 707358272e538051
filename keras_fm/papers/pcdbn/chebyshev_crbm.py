import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments
from keras_fm.core.planned_release import PlannedRelease
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.papers.pcdbn import claims, filters
from keras_fm.papers.pcdbn.patch_moments import PatchMomentQuery
from keras_fm.per_example.windows import side
from keras_fm.preprocessing.pretrained_layer import PretrainedLayer
from keras_fm.public import polynomials
from keras_fm.public.local_response_normalization import local_response

POLYNOMIALS = ("chebyshev", "taylor", "tanh", "piecewise", "published", "exact")
NORMALIZATIONS = ("local", "batch", "constant")
VISIBLE = ("binary", "gaussian")
# Most numbers in a moment tensor, so that it fits into memory.
_MAX_MOMENTS = 50_000_000
# Values of patches held in memory at once.
_CHUNK = 2**20


@keras.saving.register_keras_serializable(package="keras_fm")
class ChebyshevCRBM(PretrainedLayer):
    """Convolutional RBM whose activation is a low-degree polynomial (pCDBN).

    The layer computes x = W * v + b (one map for each filter,
    cross-correlation) and X = x / Z in [-1, 1], with Z a denominator. It
    outputs

        P(h = 1 | v) = clip(sum_l alpha_l X^l, 0, 1),

    with alpha the coefficients of a polynomial that approximates
    `sigmoid(gain X)`. A record's energy, with these probabilities in place of
    sampled states, is

        E(v) = - sum_k sum_ij P(h^k_ij | v) x^k_ij - c . v.

    The layer trains only under a `keras_fm.callbacks.PrivateModel`.

    Proven (the default): the filters are computed from a release, a noisy
    statistic of the records. Z is a public constant. The energy then depends
    on records only through moments of order `moment_order` of the patches
    u = [v - centre; constant]. These moments, averaged over a record's
    positions, are released once. Filters of unit norm, orthogonal to each
    other, are learned from them (`keras_fm.filters.learn`).

    Published (`guarantee="published"`): the paper's algorithm, whose epsilon
    is claimed, not proven. Every step is contrastive divergence on the
    records (`keras_fm.models.EnergyModel`). The coefficients alpha of every
    map carry Laplace noise, fixed (Phan et al. 2017, Lemma 2) or drawn again
    at every step (the authors' code). With `unprotected=True` this is CDBN
    (`polynomial="exact"`) or TCDBN, without noise and not private.

    Args:
        filters: int, number of maps.
        kernel_size, strides: int or pair.
        padding: `"same"` or `"valid"`; pads with `centre`.
        polynomial: `"chebyshev"`, `"taylor"`, `"tanh"` (the Taylor series of
            tanh(X), printed for pCDBN_TE), `"piecewise"` (of `degree`
            pieces), `"published"` (the paper's L = 7 polynomial, close to
            `sigmoid(5 X)`), or `"exact"`.
        degree: int L.
        gain: float > 0, see above; 1 is the paper's.
        normalization: the choice of Z. `"local"`:
            max(|x|, (q + a sum x'^2)^beta) over neighbouring maps at the same
            position, with the constants of `LocalResponseNormalization`.
            `"batch"`: the largest |x| of the batch (the authors' code).
            `"constant"`: `scale`, with X clipped to [-1, 1].
        scale: the constant Z, also that of the released energy. `None` is
            the largest |x| of unit filters, `patch_bound`.
        visible: `"binary"` (values in [0, 1]) or `"gaussian"` (unit
            variance; |v - centre - c|^2 / 2 replaces -c . v).
        conditions: int, length of a second input, which acts through dynamic
            biases of hidden and visible units (Eqs. 25 and 26); 0 for none.
        bounds: public `(low, high)` of the inputs.
        moment_order: 2 or 4, proven form only: the released energy has
            degree `moment_order - 1` in place of `degree`.
        patch_bound: public L2 bound of `v - centre` of a patch; `None` for a
            tenth of the norm of the patch's farthest corner. A release scales
            longer patches back, so you may choose any bound.
        clip: whether the layer scales longer patches back as well, as local
            contrast normalisation does. x is then the x of the released
            energy.
        sparsity: proven form only: a unit is half active this many standard
            deviations above its mean, see `keras_fm.filters.learn`.
        moment_strides: proven form only: `None` (`strides`), or the steps
            between the patches that a release averages over.
        centre: public constant subtracted from the inputs.
        guarantee: `"proven"` or `"published"`.

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
        visible: str = "binary",
        conditions: int = 0,
        bounds: tuple[float, float] = (0.0, 1.0),
        moment_order: int = 2,
        patch_bound: float | None = None,
        clip: bool = False,
        sparsity: float = 1.5,
        moment_strides: int | Sequence[int] | None = None,
        centre: float = 0.0,
        guarantee: str = "proven",
        **kwargs: Any,
    ) -> None:
        super().__init__(guarantee, **kwargs)
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
        gain = checks.number("gain", gain)
        self.gain = checks.number("gain", gain, at_least=1e-3, at_most=100)
        self.scale = checks.optional(checks.norm_bound, "scale", scale)
        self.patch_bound = checks.optional(
            checks.norm_bound, "patch_bound", patch_bound
        )
        self.centre = checks.number("centre", centre)
        self.sparsity = checks.number("sparsity", sparsity)
        self.conditions = checks.natural("conditions", conditions)
        low, high = (float(b) for b in bounds)
        bounds_lib.check_bounds(low, high)
        self.bounds, self.clip = (low, high), bool(clip)
        self.moment_strides = checks.optional(
            layer_arguments.pair, "moment_strides", moment_strides
        )
        # The `keras_fm.polynomials` object of the activation, or `None`.
        self.approximation = self._make_approximation()

    def _make_approximation(self):
        if self.polynomial == "exact":
            return None
        if self.polynomial == "published":
            return polynomials.published(self.degree)
        if self.polynomial == "tanh":
            return polynomials.taylor("tanh", self.degree, self.gain)
        make = getattr(polynomials, self.polynomial)
        return make("sigmoid", self.degree, self.gain)

    # Weights and shapes --------------------------------------------------

    def build(self, input_shape):
        if self.conditions:
            input_shape, _ = input_shape
        self.record_shape = tuple(input_shape[1:])
        channels = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.kernel_size, channels, self.filters),
            initializer="glorot_uniform",
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.filters,), initializer="zeros"
        )
        self.visible_bias = self.add_weight(
            name="visible_bias", shape=(channels,), initializer="zeros"
        )
        self.condition_kernel = self.visible_condition_kernel = None
        if self.conditions:
            self.condition_kernel = self.add_weight(
                name="condition_kernel",
                shape=(self.conditions, self.filters),
                initializer="zeros",
            )
            self.visible_condition_kernel = self.add_weight(
                name="visible_condition_kernel",
                shape=(self.conditions, channels),
                initializer="zeros",
            )
        # Visible biases have no gradient outside pre-training.
        self.set_pretraining(False)

    def set_pretraining(self, value):
        """Sets whether the visible units' biases train with the layer."""
        for weight in (self.visible_bias, self.visible_condition_kernel):
            if weight is not None:
                weight.trainable = value

    def compute_output_shape(self, input_shape):
        images = input_shape[0] if self.conditions else input_shape
        return self._shape_of(images)

    def _shape_of(self, images):
        return layer_arguments.map_shape(
            images, self.kernel_size, self.strides, self.padding, self.filters
        )

    @property
    def map_shape(self):
        """`(height, width)` of one map."""
        return self._shape_of((None, *self.record_shape))[1:3]

    @property
    def patch_size(self):
        """Number of entries of a patch, without the constant."""
        return math.prod(self.kernel_size) * self.record_shape[-1]

    def _margins(self, strides):
        """Padding of "same" before and after, for both axes."""
        sizes = zip(self.record_shape, self.kernel_size, strides)
        return [side(*axis, self.padding)[1:] for axis in sizes]

    # Hidden units --------------------------------------------------------

    def parts(self, inputs):
        """`(visible units, conditions or None)` of the layer's inputs."""
        v, conditions = inputs if self.conditions else (inputs, None)
        # Keras casts only floats; integers would truncate the weights.
        v = ops.cast(v, self.compute_dtype)
        if conditions is not None:
            conditions = ops.cast(conditions, self.compute_dtype)
        return v, conditions

    def preactivation(self, inputs):
        """x = W * v + b, with dynamic biases if there are conditions.

        Returns:
            `(batch, new_height, new_width, filters)`.
        """
        v, conditions = self.parts(inputs)
        v = v - ops.cast(self.centre, v.dtype)
        v = ops.pad(v, [(0, 0), *self._margins(self.strides), (0, 0)])
        x = ops.conv(
            v,
            ops.cast(self.kernel, v.dtype),
            strides=self.strides,
            padding="valid",
            data_format="channels_last",
        )
        if self.clip:
            x = x * self._shrink(v)
        x = x + ops.cast(self.bias, x.dtype)
        if conditions is not None:
            dynamic = ops.matmul(
                conditions, ops.cast(self.condition_kernel, conditions.dtype)
            )
            x = x + ops.cast(dynamic, x.dtype)[:, None, None, :]
        return x

    def _shrink(self, padded):
        """Factors that scale patches to their bound, `(batch, h, w, 1)`."""
        # Squares overflow in half precision.
        squares = ops.sum(ops.square(ops.cast(padded, "float32")), axis=-1)
        # A convolution of one channel takes several times as long as products.
        down, across = (
            ops.convert_to_tensor(_windows(*axis))
            for axis in zip(padded.shape[1:3], self.kernel_size, self.strides)
        )
        sums = ops.matmul(ops.transpose(down), ops.matmul(squares, across))
        bound = self.input_bound
        # Never the root of zero, whose slope is infinite.
        norms = ops.sqrt(ops.maximum(sums, bound * bound))
        return ops.expand_dims(ops.cast(bound / norms, padded.dtype), -1)

    def normalised(self, x):
        """X = x / Z, in [-1, 1]."""
        if self.normalization == "local":
            return local_response(x, **claims.LOCAL)
        if self.normalization == "batch":
            largest = ops.max(ops.abs(x))
            return x / ops.maximum(largest, ops.cast(1e-6, x.dtype))
        return ops.clip(x / ops.cast(self.energy_scale, x.dtype), -1.0, 1.0)

    def scaled(self, coefficients):
        """Coefficients in X of a polynomial given in `gain * X`."""
        return [c * self.gain**power for power, c in enumerate(coefficients)]

    def activation(self, normalised, training=False):
        """P(h = 1 | v) from X, with the fixed noise while training."""
        noise = None
        # A layer that is not trained gets no noise.
        if training and self.trainable and self.is_perturbed:
            noise = self.noise_now("coefficient_noise")
        # High powers need more than half precision.
        z = ops.cast(normalised, "float32")
        if self.polynomial == "exact":
            value = ops.sigmoid(self.gain * z)
        elif self.polynomial == "piecewise":
            value = _piecewise(self.approximation, self.gain * z)
        else:
            value = _polynomial(self.scaled(self.approximation.coefficients), z)
        if noise is not None:
            value = value + _horner(
                [noise[power] for power in range(noise.shape[0])], z
            )
        if noise is not None or self.polynomial != "exact":
            value = ops.clip(value, 0.0, 1.0)
        return ops.cast(value, normalised.dtype)

    def call(self, inputs, training=None):
        training = self.in_training(training)
        x = self.preactivation(inputs)
        return self.activation(self.normalised(x), training)

    # Visible units and energy --------------------------------------------

    def visible_logits(self, hidden, conditions=None):
        """`W^T * h + c`: the visible units' logits from the maps.

        Args:
            hidden: `(batch, new_height, new_width, filters)`.
            conditions: `(batch, conditions)`, if the layer has them.

        Returns:
            `(batch, height, width, channels)`.
        """
        hidden = ops.cast(hidden, self.compute_dtype)
        raw = ops.conv_transpose(
            hidden,
            ops.cast(self.kernel, hidden.dtype),
            strides=self.strides,
            padding="valid",
            data_format="channels_last",
        )
        # The adjoint of: pad, convolve, and drop entries outside all filters.
        margins = self._margins(self.strides)
        fill = [(0, 0)]
        for axis, size in enumerate(self.record_shape[:2]):
            padded = size + sum(margins[axis])
            fill.append((0, max(0, padded - raw.shape[axis + 1])))
        raw = ops.pad(raw, [*fill, (0, 0)])
        (top, _), (left, _) = margins
        height, width = self.record_shape[:2]
        logits = raw[:, top : top + height, left : left + width]
        return logits + ops.cast(self._visible_bias(conditions), logits.dtype)

    def _visible_bias(self, conditions):
        bias = ops.convert_to_tensor(self.visible_bias)
        if conditions is None:
            return bias
        dynamic = ops.matmul(
            ops.cast(conditions, bias.dtype), self.visible_condition_kernel
        )
        return bias + dynamic[:, None, None, :]

    def visible_mean(self, hidden, conditions=None):
        """E[v | h]: probabilities of binary units, means of Gaussian ones."""
        z = self.visible_logits(hidden, conditions)
        if self.visible == "binary":
            return ops.sigmoid(z)
        return z + ops.cast(self.centre, z.dtype)

    def reconstruct(self, inputs, training=False):
        """E[v | h = P(h = 1 | v)]."""
        hidden = self.call(inputs, training=training)
        return self.visible_mean(hidden, self.parts(inputs)[1])

    def chain(self, inputs, steps, seed, training=False):
        """The end of a Gibbs chain of `steps` steps (CD-k). Hidden states are
        drawn; visible units are set to their means.

        Args:
            inputs: where the chain starts.
            steps: int k.
            seed: a `keras.random.SeedGenerator`.

        Returns:
            visible units, shape of `inputs` (the first of them).
        """
        v, conditions = self.parts(inputs)
        for _ in range(checks.count("steps", steps)):
            given = v if conditions is None else [v, conditions]
            p = self.call(given, training=training)
            states = keras.random.uniform(
                ops.shape(p), dtype="float32", seed=seed
            )
            # In half precision a draw below 1 may round up to 1.
            states = ops.cast(states < ops.cast(p, "float32"), p.dtype)
            v = ops.cast(self.visible_mean(states, conditions), v.dtype)
        return v

    def energy(self, inputs, hidden=None, training=False):
        """E(v, h) of every record.

        Args:
            inputs: visible units (and conditions).
            hidden: states of the hidden units, for the energy of Eq. 4.
                `None` uses P(h = 1 | v) instead: Eq. 12 with
                `polynomial="exact"`, else the polynomial energy of Eq. 14.
            training: whether the fixed noise is added.

        Returns:
            `(batch,)` tensor.
        """
        if training:
            self.enter_training()
        v, conditions = self.parts(inputs)
        x = self.preactivation(inputs)
        if hidden is None:
            hidden = self.activation(self.normalised(x), training)
        x, hidden, v = (ops.cast(t, "float32") for t in (x, hidden, v))
        bound = -ops.sum(x * hidden, axis=(1, 2, 3))
        bias = ops.cast(self._visible_bias(conditions), "float32")
        if self.visible == "binary":
            return bound - ops.sum(v * bias, axis=(1, 2, 3))
        away = v - self.centre - bias
        return bound + ops.sum(away * away, axis=(1, 2, 3)) / 2

    # Published -----------------------------------------------------------

    claim_reason = claims.ENERGY_REASON
    settings_class = claims.PublishedCDBN
    noise_names = ("coefficient_noise",)
    _view = "EnergyModel"

    def noise_shapes(self, settings):
        """One value for every coefficient of every map's polynomial."""
        # A piece has a value and a slope.
        powers = 1 if self.polynomial == "piecewise" else self.degree
        return {"coefficient_noise": (powers + 1, self.filters)}

    def claimed_sensitivity(self, neighbours, settings=None):
        """Delta of Lemma 2, see `claims.energy_sensitivity`.

        Args:
            neighbours: `"replace_one"` (the paper's) or `"add_remove"`.
            settings: a `PublishedCDBN`.

        Raises:
            ValueError: if the energy has no coefficients to perturb.
        """
        if self.polynomial == "exact":
            raise ValueError(
                f"The energy of layer '{self.name}' has no coefficients to "
                'perturb with polynomial="exact": choose another.'
            )
        settings = settings or claims.PublishedCDBN()
        return claims.energy_sensitivity(
            self.scaled(self._largest_coefficients()),
            form=settings.form,
            positions=math.prod(self.map_shape),
            patch=self.patch_size,
            bound=max(abs(b - self.centre) for b in self.bounds),
            visible=math.prod(self.record_shape)
            * max(abs(b) for b in self.bounds),
            normalization=[claims.LOCAL[name] for name in ("q", "a", "beta")]
            if self.normalization == "local"
            else None,
            neighbours=neighbours,
        )

    def _largest_coefficients(self):
        """The polynomial's coefficients, or their largest sizes over pieces."""
        if self.polynomial != "piecewise":
            return self.approximation.coefficients
        knots, values = self.approximation.knots, self.approximation.values
        slopes = np.diff(values) / np.diff(knots)
        starts = np.asarray(values[:-1]) - slopes * np.asarray(knots[:-1])
        return float(np.abs(starts).max()), float(np.abs(slopes).max())

    def claim_uses(self, settings):
        per_step = settings.noise_per_step
        how = "drawn again at every step" if per_step else "fixed"
        return (
            "every record at every step, in both phases of contrastive "
            f"divergence; noise ({how}) on the coefficients of the energy"
        )

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
        """The constant entry beside a patch. Order 2: small, because it adds
        to the sensitivity of the moments that matter. Order 4: as large as
        the patch, because the lower orders are released through it."""
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
        """Arguments of `keras_fm.filters.learn` beside the release."""
        degree = self.moment_order - 1
        approximation = polynomials.chebyshev("sigmoid", degree, self.gain)
        return {
            "filters": self.filters,
            "coefficients": self.scaled(approximation.coefficients),
            "scale": self.energy_scale,
            "sparsity": self.sparsity,
        }

    def release_names(self):
        return [f"{self.name} (patch moments)"]

    def default_shares(self, alike):
        # Few moments, each an average over many patches.
        return [0.05]

    def planned_releases(self, reading):
        """The one release of the layer: the moments of its patches.

        Raises:
            ValueError: if the layer's form cannot be proven.
        """
        self.check_proven()
        read = reading.in_pieces(self)

        def learn(release):
            # Biases of visible units become 0: no weight may keep anything
            # that an earlier fit learned.
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
            PlannedRelease(
                name=name,
                query=query,
                clip=True,
                read=partial(read, self.patches),
                learn=learn,
            )
        ]

    def check_proven(self):
        """Refuses a layer that no release can train.

        Raises:
            ValueError: with the argument to change.
        """
        if self.conditions:
            raise ValueError(
                f"ChebyshevCRBM '{self.name}' has dynamic biases, whose "
                "weights would be trained on records. In a proven model leave "
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
        """Patches with their constant entry, whose moments are released.

        Args:
            inputs: NumPy `(n, height, width, channels)`.
            chunks: `True` yields a few records at a time to bound memory,
                `False` all at once.

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
            # Unlike `reshape`, this never copies.
            place.shape = windows.shape
            place[...] = windows
            norms = np.sqrt(np.einsum("npk,npk->np", patch, patch))
            shrink = self.input_bound / np.maximum(norms, self.input_bound)
            patch *= (shrink * (1 - 1e-6))[..., None]
            found[..., -1] = self.constant
            yield found

    def set_filters(self, kernel, bias):
        """Sets filters and biases from those of patches.

        Biases of visible units could only be trained on records: they become
        0.

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


def _windows(length, size, stride):
    """1 if a point of a line is in a window, else 0; `(length, windows)`."""
    starts = stride * np.arange((length - size) // stride + 1)
    past = np.arange(length)[:, None] - starts
    return ((past >= 0) & (past < size)).astype("float32")


def _polynomial(coefficients, z):
    constant, *others = coefficients
    # An odd function plus a constant needs half of the multiplications.
    if len(others) > 1 and not any(others[1::2]):
        return _horner(others[::2], z * z) * z + constant
    return _horner(coefficients, z)


def _horner(coefficients, z):
    *others, value = coefficients
    for coefficient in reversed(others):
        value = value * z + coefficient
    return value if others else value + ops.zeros_like(z)


def _piecewise(approximation, z):
    """A sum of ramps: every knot changes the slope."""
    knots, values = approximation.knots, approximation.values
    # Python numbers: NumPy's would turn tensors into arrays.
    slopes = np.diff(values) / np.diff(knots)
    changes = np.diff(slopes).tolist()
    value = values[0] + float(slopes[0]) * (z - knots[0])
    for knot, change in zip(knots[1:-1], changes):
        value = value + change * ops.relu(z - knot)
    return value
