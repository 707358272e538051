import dataclasses
import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.guarantee import STARTS
from keras_fm.core.planned_release import PlannedRelease, PublishedNoise
from keras_fm.core.private_part import ReleasedLayer
from keras_fm.core.released import check_paid, stored_arrays
from keras_fm.heads import (
    claims,
    class_weights,
    coefficient_noise,
    exact_minimum,
    perturbed_loss,
    target_window,
    whitening,
)
from keras_fm.heads.gradient_query import GradientQuery
from keras_fm.heads.head_losses import HEAD_LOSSES
from keras_fm.heads.rounds import Rounds
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns

_RELEASE_ARRAYS = ("hessian", "minimiser", "offset")


@keras.saving.register_keras_serializable(package="keras_fm")
class PrivateDense(ReleasedLayer):
    """Output layer that learns with privacy: classes, labels or numbers.

    It trains under a `keras_fm.callbacks.PrivateModel`:

    * proven: the records are used once, to publish the layer's objective
      with noise (a *release*). It is a quadratic `<L, W> + k tr(W^T A W)`
      with noisy A and L; k is 1/8 for the Taylor cross-entropy and 1/2 for
      squared error. After that no record changes the kernel. While training,
      the layer adds the released objective to the loss and outputs zeros, so
      the data loss is a constant. At inference it outputs logits, or
      predictions in the unit of the targets. This holds for every later fit,
      with or without the callback, and for a loaded model. With `rounds` the
      records are used R times instead: each round takes a noisy sum of
      clipped gradients at the current weights. The final weights are the
      release, and the objective is the squared distance to them.
    * published: noise on the coefficients of the Taylor cross-entropy is
      added to the loss while records still drive the gradient (AdLM steps
      4-5, dPA Lemma 3). This privacy is claimed, not proven.

    Without either the layer refuses to train: in `fit`, in any other loop,
    and when it was copied or loaded without its release. `unprotected=True`
    makes it the non-private twin, for comparisons.

    Args:
        units: positive int, number of outputs M (1 for binary labels).
        use_bias: whether to add a bias. In the released objective the bias
            is the weight of a constant feature `bias_feature`.
        bias_feature: float > 0, the constant's value. A larger value means
            less noise on the bias and more on the rest. `None` is 0.1 for
            classes and labels. For numbers it is `feature_bound` with
            `rounds`, and half of it without.
        feature_bound: float, public bound C on the L2 norm of an input.
        feature_l1_bound: `None`, or a public bound on the L1 norm of an input
            as well. If at most s entries are not zero it is sqrt(s) C. It
            lowers the noise for a pure epsilon (delta = 0). Not with
            `rounds`.
        nonnegative: whether inputs are known to be >= 0. This lowers
            replace_one sensitivities and is checked at the release.
        clip: whether inputs and numbers outside their bounds are clipped to
            them at the release instead of refused.
        quadratic_scale: float > 0, how much of the noise A takes (see
            `keras_fm.queries.QuadraticQuery`). `None` is 1. For numbers it is
            2 C / sqrt(M), if that is larger.
        rounds: `None` for one release, or a `keras_fm.Rounds` (an int R stands
            for `Rounds(rounds=R)`): R rounds within the same budget.
        kernel_initializer, bias_initializer: initializers.
        loss: sets the kind of targets: `"cross_entropy"` (classes, or 0 and 1
            for one output), `"binary_cross_entropy"` (every output is a
            separate label, 0 or 1) or `"squared_error"` (numbers).
        target_bounds: for numbers only, and needed for them: public
            `(low, high)` for all, or one such pair for each output. Outputs
            are in their unit. One release first spends a fifth of the layer's
            budget on moments of the numbers, and then uses numbers in a
            window about their mean.
        class_weight: for classes only: `None`, a dict from classes to public
            numbers (1 for a class that is left out), or `"balanced"`, which
            releases counts of the classes with a twentieth of the layer's
            budget. After all bounds, the part of a record is multiplied by
            the weight of its class over the largest weight.
        perturbed_loss: for classes without `rounds`. If `True` and delta is 0,
            the layer releases the minimiser of the cross-entropy with a noisy
            linear term instead of A and S. This has far less noise, but needs
            the features of all records in memory. A and S are still released
            if an owner is the privacy unit or if labels alone are secret.
        unprotected: `True` for the non-private twin.

    Input shape: `(batch, inputs)`. Output shape: `(batch, units)`.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = PrivateDense(10)
    >>> layer(np.ones((2, 64)) / 8).shape
    (2, 10)
    >>> prices = PrivateDense(1, loss="squared_error", target_bounds=(0, 50))
    """

    def __init__(
        self,
        units: int,
        use_bias: bool = True,
        bias_feature: float | None = None,
        feature_bound: float = 1.0,
        nonnegative: bool = False,
        clip: bool = False,
        quadratic_scale: float | None = None,
        rounds: Any = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        loss: str = "cross_entropy",
        target_bounds: Any = None,
        feature_l1_bound: float | None = None,
        class_weight: Any = None,
        perturbed_loss: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = checks.count("units", units)
        self.use_bias = use_bias
        self.feature_bound = checks.positive("feature_bound", feature_bound)
        self.feature_l1_bound = checks.optional(
            checks.norm_bound, "feature_l1_bound", feature_l1_bound
        )
        if rounds is not None and (quadratic_scale or feature_l1_bound):
            raise ValueError(
                "`quadratic_scale` and `feature_l1_bound` belong to one "
                "release, not to `rounds`. Received: "
                f"quadratic_scale={quadratic_scale}, "
                f"feature_l1_bound={feature_l1_bound}"
            )
        self.nonnegative = bool(nonnegative)
        self.clip = bool(clip)
        self.loss = checks.one_of("loss", loss, HEAD_LOSSES)
        numbers = loss == "squared_error"
        if numbers:
            target_bounds = bounds_lib.target_bounds(
                "target_bounds", target_bounds, self.units
            )
        elif target_bounds is not None:
            raise ValueError(
                '`target_bounds` belong to loss="squared_error". Received: '
                f"target_bounds={target_bounds}, loss={loss!r}"
            )
        self.target_bounds = target_bounds
        self.class_weight = class_weights.checked(
            "class_weight",
            class_weight,
            max(2, self.units) if self.predicts == "classes" else None,
        )
        if rounds is not None:
            rounds = Rounds.of(rounds).of_losses(self._kind.rounds)
        self.rounds = rounds
        self.perturbed_loss = checks.flag("perturbed_loss", perturbed_loss)
        if perturbed_loss and (rounds or self.predicts != "classes"):
            raise ValueError(
                "`perturbed_loss=True` is for one release of classes: leave "
                f"it out. Received: rounds={rounds}, loss={loss!r}"
            )
        if bias_feature is None:
            of_numbers = self.feature_bound * (1.0 if rounds else 0.5)
            bias_feature = of_numbers if numbers else 0.1
        self.bias_feature = checks.positive("bias_feature", bias_feature)
        if quadratic_scale is None and rounds is None:
            most = 2 * self.objective_bound / self.units**0.5
            quadratic_scale = max(1.0, most) if numbers else 1.0
        self.quadratic_scale = checks.optional(
            checks.positive, "quadratic_scale", quadratic_scale
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self._built_with = None

    def build(self, input_shape):
        if len(input_shape) != 2:
            raise ValueError(
                "PrivateDense expects inputs of shape (batch, features); put "
                "`keras.layers.Flatten()` before it. Received: "
                f"input_shape={input_shape}"
            )
        self.input_dim = input_shape[-1]
        # Cast by hand: the released objective needs full precision.
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.input_dim, self.units),
            initializer=self.kernel_initializer,
            autocast=False,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                autocast=False,
            )
        self._built_with = self._digest()

    # Where training starts -----------------------------------------------

    def check_start(self, start):
        """Refuses to keep weights that private records may have trained.

        Args:
            start: `"minimiser"` gives the layer released weights; `"current"`
                keeps its present weights.

        Raises:
            ValueError: if `start` is neither, or is `"current"` although the
                layer has no release and its weights changed since `build`.
        """
        checks.either("start", start, STARTS)
        if start == "minimiser" or self.is_released:
            return
        if self._built_with is None or self._built_with != self._digest():
            raise ValueError(
                f"Layer '{self.name}' does not have the weights it was built "
                'with, and start="current" would keep them: no ledger counts '
                'their training. Use start="minimiser", build a new model, or '
                "give public weights as `kernel_initializer` and "
                "`bias_initializer`."
            )

    # The query of the layer ----------------------------------------------

    @property
    def _kind(self):
        return HEAD_LOSSES[self.loss]

    @property
    def predicts(self):
        """`"classes"`, `"labels"` or `"numbers"`."""
        return self._kind.predicts

    @property
    def num_features(self):
        """Length m of a feature vector, the constant entry included."""
        return self.input_dim + (1 if self.use_bias else 0)

    @property
    def objective_bound(self):
        """L2 bound on a feature vector, the constant entry included."""
        if self.use_bias:
            return math.hypot(self.feature_bound, self.bias_feature)
        return self.feature_bound

    @property
    def _objective_l1_bound(self):
        if self.feature_l1_bound is None:
            return None
        constant = self.bias_feature if self.use_bias else 0.0
        return self.feature_l1_bound + constant

    def objective(
        self, grouped=False, reach=0, public_features=False, clip=None
    ):
        """The query that this layer releases: a statistic with a sensitivity.

        Args:
            grouped, reach, public_features: see `queries.QuadraticQuery`.
            clip: the clip that a rule gives, if `rounds` have none.

        Returns:
            A `CrossEntropyQuery` or `SquaredErrorQuery` for features from
            `augment`. With `rounds` a `GradientQuery`.
        """
        of_targets = self._kind.fields(self.target_bounds)
        if isinstance(self.class_weight, tuple):
            of_targets["class_weights"] = self.class_weight
        if self.rounds is not None:
            if public_features:
                self.check_labels_alone()
            return GradientQuery(
                num_features=self.num_features,
                num_outputs=self.units,
                feature_bound=self.objective_bound,
                clip=self.rounds.clip or clip or self.objective_bound,
                loss=self.rounds.loss,
                grouped=grouped,
                **of_targets,
            )
        return self._kind.query(
            num_features=self.num_features,
            num_outputs=self.units,
            feature_bound=self.objective_bound,
            feature_l1_bound=self._objective_l1_bound,
            nonnegative=self.nonnegative,
            quadratic_scale=self.quadratic_scale,
            grouped=grouped,
            reach=reach,
            public_features=public_features,
            **of_targets,
        )

    def _whole_loss(self):
        """The query of `perturbed_loss`, for a pure epsilon."""
        return perturbed_loss.PerturbedLossQuery(
            num_features=self.num_features,
            num_outputs=self.units,
            feature_bound=self.objective_bound,
            feature_l1_bound=self._objective_l1_bound,
            class_weights=None if self._balanced else self.class_weight,
        )

    def check_labels_alone(self):
        if self.class_weight is not None:
            raise ValueError(
                f"`class_weight` of layer '{self.name}' weighs features by "
                'labels, which are secret under neighbours="replace_label". '
                'Leave it out, or write neighbours="replace_one".'
            )
        if self.rounds is None:
            return
        raise ValueError(
            f"`rounds` of layer '{self.name}' gain nothing under "
            'neighbours="replace_label": one release holds everything that '
            "gradients use of the labels. Leave out `rounds`, or write "
            'neighbours="replace_one", which protects labels too.'
        )

    def learn(self, release, ledger, ridge_factor=0.5, start="minimiser"):
        """Trains the layer on a release. Uses no records, no noise, no budget.

        A fit with `PrivateModel` calls this itself. Call it yourself for a
        release from elsewhere: from a data engine, or from a file.

        Args:
            release: a `Release` of `self.objective()`.
            ledger: the `Ledger` that was charged for it. The model's privacy
                statement is computed from it.
            ridge_factor: ridge in units of the noise's spectral edge (the
                largest eigenvalue that noise alone is expected to have).
            start: `"minimiser"` moves the weights to the minimum of the
                released objective, `"current"` leaves them. Or pass weights
                `(m, units)` that you computed from this release alone.

        Raises:
            ValueError: if the release is of another objective, if the ledger
                has no entry for it, or if `start` has another shape or keeps
                weights that private records may have trained.

        Example:

        >>> layer.learn(Release.load("head.npz"), Ledger.load("ledger.json"))
        """
        made = None
        if isinstance(start, str):
            self.check_start(start)
        else:
            made = np.asarray(start)
            if made.shape != (self.num_features, self.units):
                raise ValueError(
                    "`start` must hold weights of shape "
                    f"{(self.num_features, self.units)}. Received: "
                    f"shape={made.shape}"
                )
        objective = release.query
        names = ("grouped", "reach", "public_features", "clip")
        expected = self.objective(
            **{k: getattr(objective, k) for k in names if hasattr(objective, k)}
        )
        if isinstance(objective, perturbed_loss.PerturbedLossQuery):
            expected = self._whole_loss()
        if self._balanced:
            weights = objective.class_weights
            expected = dataclasses.replace(expected, class_weights=weights)
        elif self._windows:
            window = getattr(objective, "target_bounds", self.target_bounds)
            expected = dataclasses.replace(expected, target_bounds=window)
        if objective != expected:
            raise ValueError(
                f"The release is not one of layer '{self.name}', which "
                f"expects {expected}. Received: {objective}"
            )
        check_paid(ledger, [release])
        if "weights" in release.statistics:
            hessian, minimiser = None, release.statistics["weights"]
            offset = 0.0
        else:
            known = {}
            if self.loss == "squared_error" and self.use_bias:
                known["constant"] = self.bias_feature
                if objective.target_bounds != self.target_bounds:
                    known["unsure"] = target_window.UNSURE
            hessian, minimiser = release.minimise(ridge_factor, **known)
            # The objective per record; n is estimated from the release.
            n = release.estimated_records()
            linear = objective.linear_coefficients(release.linear)
            curved = objective.curvature * (hessian @ minimiser)
            offset = np.sum((linear + curved) * minimiser, axis=0) / n
            hessian = hessian / n
            if self._windows:
                minimiser, offset = self._unwindowed(
                    minimiser, offset, objective.target_bounds
                )
            offset = np.sum(offset)
        self.set_release(hessian, minimiser, offset, ledger.to_json())
        if made is not None:
            self.set_augmented_weights(made)
            self._note()
        elif start == "minimiser":
            self.set_weights_from_minimiser()

    # Planned releases ----------------------------------------------------

    @property
    def _balanced(self):
        return self.class_weight == class_weights.BALANCED

    @property
    def _windows(self):
        numbers = self.target_bounds is not None
        return numbers and self.use_bias and self.rounds is None

    @property
    def _whitens(self):
        return self.rounds is not None and self.rounds.whitening > 0

    def release_names(self):
        first = [class_weights.NAME] * self._balanced
        if self._whitens:
            first.append(f"{self.name} (second moment)")
        if self._windows:
            first.append(f"{self.name} (targets)")
        return [*first, self.name]

    def split_share(self):
        first = [class_weights.SHARE] * self._balanced
        if self._whitens:
            first.append(self.rounds.whitening)
        if self._windows:
            first.append(target_window.SHARE)
        return [*first, 1 - sum(first)]

    @property
    def start_fact(self):
        """The line about class weights in the statement."""
        if self.class_weight is None:
            return None
        of = "released" if self._balanced else "public, by declaration"
        return f"weights of classes: {of}"

    def planned_releases(self, reading):
        unit = reading.privacy_unit
        public_features = reading.public_features
        first, more = [], {}
        if self._balanced:
            found = []
            first.append(reading.counts_of_classes(self.units, found.append))

            def prepare(planned):
                weighed = dataclasses.replace(
                    planned.query, class_weights=found[-1]
                )
                return dataclasses.replace(planned, query=weighed)

            more["prepare"] = prepare
        if self.rounds is None:
            query = self.objective(**unit, public_features=public_features)
            pure = self.perturbed_loss and not reading.ledger.budget.delta
            if pure and not (any(unit.values()) or public_features):
                query = self._whole_loss()
                exact_minimum.check_count(reading.known_units or 0)
                more["carry_out"] = reading.minimise
            if self._windows:
                first, more = self._windowed(reading, unit)
            return [*first, self._planned(reading, query, **more)]
        reading.check_rounds(f"`rounds` of layer '{self.name}'")
        if public_features:
            self.check_labels_alone()
        more["samples"] = reading.samples(self.rounds)
        if not self._whitens:
            known = {}
            if self.rounds.loss == "squared_error":
                known["steepest"] = self.objective_bound**2
            descent = functools.partial(self._descend, known)
            more["carry_out"] = functools.partial(reading.descend, descent)
            query = self.objective(**unit)
            return [*first, self._planned(reading, query, **more)]
        m, bound = self.num_features, self.objective_bound
        white = whitening.Whitening(m, bound, **unit)

        def moment():
            for features, y, *owners in reading.labelled(self):
                # A wrong label must fail before the ledger is charged.
                self.check_labels(y, len(features))
                yield features, None, *owners

        def learn(release):
            white.learn(release, reading.units)
            reading.releases[name] = release

        def read():
            for features, *rest in reading.labelled(self):
                yield white.rows(features, self.clip), *rest

        known = whitening.rule(
            self.rounds.loss,
            self.units,
            independent=self.loss == "binary_cross_entropy",
        )
        name, own = self.release_names()[-2:]
        threshold = whitening.clip(
            known, self.units, m, bound, reading.units, reading.one_release(own)
        )
        query = self.objective(**unit, clip=threshold)

        def descent(*args):
            found = self._descend(white.facts(known, query.clip), *args)
            return white.weights(found)

        return [
            *first,
            PlannedRelease(
                name=name,
                query=white.query,
                clip=self.clip,
                read=moment,
                learn=learn,
            ),
            self._planned(
                reading,
                query,
                read=read,
                carry_out=functools.partial(reading.descend, descent),
                **more,
            ),
        ]

    def _windowed(self, reading, unit):
        """The release of moments of the numbers, and what the next one does
        with them."""
        bounds, found = self.target_bounds, []
        name, _ = self.release_names()

        def moments():
            for features, y, *owners in reading.labelled(self):
                # A wrong record must fail before the ledger is charged.
                self.check_features(features)
                t = bounds_lib.numbers(y, len(features), bounds, self.clip)
                yield t, None, *owners

        def learn(release):
            found.append(
                target_window.window(release, bounds, self.num_features)
            )
            reading.releases[name] = release

        def read():
            low, high = np.array(found[-1]).T
            least, most = np.array(bounds).T
            edges = np.maximum(low, least), np.minimum(high, most)
            for features, y, *owners in reading.labelled(self):
                yield features, np.clip(y, *edges), *owners

        def prepare(planned):
            query = dataclasses.replace(planned.query, target_bounds=found[-1])
            return dataclasses.replace(planned, query=query)

        first = PlannedRelease(
            name=name,
            query=target_window.query(self.units, **unit),
            read=moments,
            learn=learn,
        )
        return [first], {"read": read, "prepare": prepare}

    def _unwindowed(self, minimiser, offset, window):
        """Weights and values of the objective for numbers that
        `target_bounds` scale, from those for numbers that a window scales."""
        (low, high), (own_low, own_high) = (
            np.array(pairs).T for pairs in (window, self.target_bounds)
        )
        share = (high - low) / (own_high - own_low)
        minimiser = minimiser * share
        moved = (low + high - own_low - own_high) / (own_high - own_low)
        minimiser[-1] += moved / self.bias_feature
        most = self._kind.at_zero
        return minimiser, share**2 * (offset + most) - most

    def _planned(self, reading, query, **more):
        given = {
            "read": functools.partial(reading.labelled, self),
            "learn": functools.partial(reading.keep, self),
        }
        return PlannedRelease(
            name=self.name, query=query, clip=self.clip, **{**given, **more}
        )

    def _descend(self, known, rounds, expected, stddev):
        start = np.zeros((self.num_features, self.units))
        return self.rounds.descend(rounds, start, expected, stddev, **known)

    def check_features(self, features):
        """Refuses features, with the constant entry, out of bounds."""
        bounds_lib.checked_features(
            features, self.num_features, self.objective_bound, self.clip
        )

    def check_labels(self, y, n):
        """Refuses labels outside the classes, and numbers out of bounds."""
        self.objective().targets(y, n, self.clip)

    def install(self, release, reading, start):
        """Gives the layer its released objective."""
        self.learn(release, reading.ledger, reading.ridge_factor, start)

    def claims(self, publishing):
        """The claims of `guarantee="published"`: noise on the coefficients of
        the loss."""
        for name in ("rounds", "class_weight"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}` of layer '{self.name}' belong to "
                    'guarantee="proven".'
                )
        if self.loss != "cross_entropy":
            raise ValueError(
                f"loss={self.loss!r} of layer '{self.name}' belongs to "
                'guarantee="proven": the papers publish the cross-entropy '
                "of classes."
            )
        sensitivity = claims.cross_entropy_sensitivity(
            self.num_features, self.units, neighbours=publishing.neighbours
        )
        m, units = self.num_features, self.units

        def fix(scale, laplace):
            linear, quadratic = np.zeros((m, units)), np.zeros((units, m, m))
            if "linear" in publishing.orders:
                linear = laplace(scale, linear.shape)
            if "quadratic" in publishing.orders:
                quadratic = laplace(scale, quadratic.shape)
            self.fix_noise(linear_noise=linear, quadratic_noise=quadratic)

        return [
            PublishedNoise(
                name=self.name,
                sensitivity=sensitivity,
                uses="every record at every step; fixed noise on the "
                f"{' and '.join(publishing.orders)} coefficients of the loss",
                reason=claims.CROSS_ENTROPY_REASON,
                fix=fix,
            )
        ]

    # Weights -------------------------------------------------------------

    def set_weights_from_minimiser(self):
        """Moves kernel and bias to the minimum of the released objective."""
        minimiser = ops.convert_to_numpy(self._get_hidden("minimiser"))
        self.set_augmented_weights(minimiser)
        self._note()

    def set_augmented_weights(self, weights):
        """Sets kernel and bias from weights for augmented features.

        Args:
            weights: `(m, units)`; the last row is for the constant entry.
        """
        self.kernel.assign(weights[: self.input_dim])
        if self.use_bias:
            self.bias.assign(weights[-1] * self.bias_feature)

    def augmented_weights(self):
        """Weights for augmented features, `(m, units)`, NumPy."""
        return np.array(
            ops.convert_to_numpy(self._weights_in_objective()), np.float64
        )

    def _weights_in_objective(self):
        kernel = ops.convert_to_tensor(self.kernel)
        if not self.use_bias:
            return kernel
        bias = ops.convert_to_tensor(self.bias)
        return ops.concatenate(
            [kernel, ops.expand_dims(bias / self.bias_feature, 0)], axis=0
        )

    # Perturbation --------------------------------------------------------

    trains_on_release = True

    noise_names = ("linear_noise", "quadratic_noise")

    def _is_whole(self):
        return self._has_hidden("minimiser")

    def set_release(self, hessian, minimiser, offset, ledger_json):
        """Sets the released objective, per record, that the layer trains on.

        The objective is `offset + curvature * tr(D^T hessian D)` with
        `D = W - minimiser` and the curvature of the layer's loss (1/8 for
        cross-entropy, 1/2 for squared error). Its gradient is exactly zero
        at the minimum in any precision.

        Args:
            hessian: `(m, m)`, or `None` for the squared distance of kernel
                and bias to those of the minimiser.
            minimiser: `(m, units)`.
            offset: float, the value at the minimum, less the constant that a
                record with outputs of zero adds.
            ledger_json: str, saved with the layer.
        """
        self.check_no_twin()
        self._set_objective(hessian, minimiser, offset)
        self.mark_released(ledger_json)

    def _set_objective(self, hessian, minimiser, offset):
        if self.is_perturbed:
            raise ValueError(
                f"Layer '{self.name}' already carries published noise; one "
                "objective is perturbed once. Build a new model."
            )
        if hessian is None and self._has_hidden("hessian"):
            # Overwrite the matrix of an earlier release.
            hessian = np.eye(self.num_features)
            if self.use_bias:
                hessian[-1, -1] = self.bias_feature**2
        if hessian is not None:
            self._set_hidden("hessian", np.asarray(hessian))
        self._set_hidden("minimiser", np.asarray(minimiser))
        self._set_hidden("offset", np.asarray(offset))

    def fix_noise(self, per_step=False, **noise):
        noise["quadratic_noise"] = coefficient_noise.symmetric(
            noise["quadratic_noise"]
        )
        super().fix_noise(per_step, **noise)

    def released_objective(self):
        # The loss of a record with zero logits, the same for all labels; for
        # numbers the largest that it can be.
        return self._released_loss() + self.units * self._kind.at_zero

    def _released_loss(self):
        return self.released_gap() + self._get_hidden("offset")

    def released_gap(self):
        """Distance of the released objective from its minimum at the current
        weights. Depends on the release only."""
        minimiser = self._get_hidden("minimiser")
        step = self.kernel - minimiser[: self.input_dim]
        if self.use_bias:
            # Computed as when it was set: exactly zero at the minimum.
            least = minimiser[self.input_dim :] * self.bias_feature
            bias = ops.expand_dims(ops.convert_to_tensor(self.bias), 0) - least
            if self._has_hidden("hessian"):
                bias = bias / self.bias_feature
            step = ops.concatenate([step, bias], axis=0)
        curved = step
        if self._has_hidden("hessian"):
            curved = ops.matmul(self._get_hidden("hessian"), step)
        return ops.sum(step * curved) * self._kind.query.curvature

    def linear_part(self, x):
        """The output before the activation, for layer-wise relevance."""
        outputs = ops.matmul(x, self.kernel)
        if self.bias is None:
            return outputs
        return ops.add(outputs, ops.cast(self.bias, outputs.dtype))

    def call(self, inputs, training=None):
        training = self.in_training(training)
        kernel, bias = self.kernel, self.bias
        released = self._released is not None
        if released:
            # No record may move the weights, in any training loop.
            kernel, bias = map(_still, (kernel, bias))
        outputs = ops.matmul(inputs, ops.cast(kernel, self.compute_dtype))
        if bias is not None:
            outputs = ops.add(outputs, ops.cast(bias, self.compute_dtype))
        outputs = self.read_out(outputs)
        if not training:
            return outputs
        if released:
            self.add_loss(self._released_loss())
            return ops.zeros_like(outputs)
        if self.is_perturbed:
            weights = self._weights_in_objective()
            noise = [self._get_hidden(name) for name in self.noise_names]
            self.add_loss(coefficient_noise.loss(weights, *noise))
        return outputs

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.units)

    def augment(self, features):
        """Appends the constant entry: `(n, inputs)` to `(n, m)`, NumPy."""
        if not self.use_bias:
            return features
        features = columns.floats(features)
        entry = ((0, 0), (0, 1))
        return np.pad(features, entry, constant_values=self.bias_feature)

    def compute_output_spec(self, inputs, training=False):
        found = super().compute_output_spec(inputs)
        if self.target_bounds is None:
            return found
        return keras.KerasTensor(found.shape, dtype=self.variable_dtype)

    def read_out(self, outputs):
        if self.target_bounds is None:
            return outputs
        # In half precision large numbers, such as prices, become infinite.
        outputs = ops.cast(outputs, self.variable_dtype)
        low, high = np.array(self.target_bounds).T
        half, centre = (
            ops.convert_to_tensor(v, dtype=outputs.dtype)
            for v in ((high - low) / 2, low + (high - low) / 2)
        )
        return ops.add(ops.multiply(outputs, half), centre)

    # Saving: a release is safe to save, noise is not ---------------------

    def _release_arrays(self):
        return {
            name: ops.convert_to_numpy(self._get_hidden(name))
            for name in _RELEASE_ARRAYS
            if self._has_hidden(name)
        }

    def _take_release_arrays(self, arrays):
        m = self.num_features
        shapes = {"minimiser": (m, self.units), "offset": ()}
        found = {"hessian": None}
        if "hessian" in arrays.keys():
            shapes["hessian"] = (m, m)
        found |= stored_arrays(self.name, arrays, shapes)
        self._set_objective(**found)


def _still(weight):
    if weight is None:
        return None
    return ops.stop_gradient(ops.convert_to_tensor(weight))
