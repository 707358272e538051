"""What a proven fit releases, in which order, and how the layers learn it."""

import functools

import keras
import numpy as np

from keras_fm import records
from keras_fm import release as release_lib
from keras_fm import relevance as relevance_lib
from keras_fm.callbacks import model_check
from keras_fm.objectives import CrossEntropyObjective, RelevanceObjective

_READ_BATCH = 1024
# Shares of the budget: first model, its relevance, the model that is kept.
ADAPTIVE_SHARES = (0.2, 0.1, 0.7)


class ProvenPlan:
    """The releases of one fit.

    Without `RelevanceScaling` it is one release: the output layer's
    objective. With it there are three: the objective at scale 1, the
    relevance of the model it gives, and the objective of the scaled
    features, each pass reading every record once.

    Args:
        model: a built model.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        shares: `None`, or one share for each release.
        planned_releases: how often the plan may be carried out.
        n_public: whether the number of records is public.
        ridge_factor: ridge in units of the noise's spectral edge.

    Raises:
        ValueError: if the model is not one that a proof covers.
    """

    def __init__(
        self,
        model,
        *,
        ledger,
        noise,
        shares,
        planned_releases,
        n_public,
        ridge_factor,
    ):
        self.model, self.ledger, self.noise = model, ledger, noise
        self.n_public, self.ridge_factor = n_public, ridge_factor
        self.head, self.inputs = model_check.output_layer(model)
        self.scaling, self.scaling_inputs = model_check.relevance_scaling(model)
        self.release = self.relevance = None
        count = 1 if self.scaling is None else 3
        if shares is None:
            shares = (1.0,) if count == 1 else ADAPTIVE_SHARES
        if len(shares) != count:
            raise ValueError(
                f"`shares` must hold one share for each of the {count} "
                f"release(s) of this model. Received: shares={shares}"
            )
        self.shares = [share / planned_releases for share in shares]

    # What will be read ---------------------------------------------------

    def _stages(self):
        """`(name, objective, mechanism)` of every release, in order."""
        objective = CrossEntropyObjective(
            num_features=self.head.num_features,
            num_outputs=self.head.units,
            feature_bound=self.head.objective_bound,
            nonnegative=self.head.nonnegative,
            quadratic_scale=self.head.quadratic_scale,
        )
        stages = [(self.head.name, objective)]
        if self.scaling is not None:
            budget = self.ledger.budget
            relevance = RelevanceObjective(
                num_features=int(np.prod(self.scaling.scale.shape)),
                ball="l2" if budget.delta > 0 else "l1",
            )
            stages = [
                (f"{self.head.name} (first model)", objective),
                (f"{self.scaling.name} (relevance)", relevance),
                *stages,
            ]
        return [
            (name, objective, self._mechanism(objective, share))
            for (name, objective), share in zip(stages, self.shares)
        ]

    def _mechanism(self, objective, share):
        return release_lib.calibrate(
            objective,
            self.ledger.budget,
            neighbours=self.ledger.neighbours,
            share=share,
        )

    def entries(self):
        """The ledger entries of the plan, nothing read."""
        return [
            release_lib.planned_entry(
                objective,
                mechanism,
                ledger=self.ledger,
                name=name,
                noise=self.noise,
                notes=self._notes(),
            )
            for name, objective, mechanism in self._stages()
        ]

    def _notes(self):
        facts = model_check.public_facts(self.model, self.head)
        if self.n_public:
            facts.append(
                "the number of records n is public by declaration (it sets "
                "the number of training steps)"
            )
        else:
            facts.append("the number of records n is not used")
        return tuple(facts)

    # Reading -------------------------------------------------------------

    def check(self):
        """Refuses models no proof covers and budgets already spent."""
        model_check.check_proven(self.model, self.head)
        self.ledger.check(self.entries())
        model_input = self.model.inputs[0]
        model_check.check_records_independent(
            self._features,
            model_input.shape[1:],
            str(model_input.dtype),
        )

    def carry_out(self, data):
        """Reads the records and charges the ledger, once for each stage."""
        stages = self._stages()
        if self.scaling is not None:
            self.scaling.reset()
            first = self._release_head(data, stages[0])
            weights = self.head.get_weights()
            self.head.set_augmented_weights(
                first.minimise(self.ridge_factor)[1]
            )
            try:
                found = self._release_relevance(data, stages[1])
            finally:
                self.head.set_weights(weights)
            self.relevance = found.shares().reshape(self.scaling.scale.shape)
            self.scaling.set_shares(self.relevance, first.signal_share())
        self.release = self._release_head(data, stages[-1])

    def _release_head(self, data, stage):
        batches = (
            (self.head.augment(self._features(x)[:n]), y)
            for x, y, n in self._padded(data)
        )
        return self._released(stage, batches)

    def _release_relevance(self, data, stage):
        below = self._function(self.scaling_inputs)
        top = keras.Model(self.scaling_inputs, self.model.outputs[0])
        batches = (
            (relevance_lib.layer_wise(top, below(x)[:n]).reshape(n, -1),)
            for x, y, n in self._padded(data)
        )
        return self._released(stage, batches)

    def _released(self, stage, batches):
        name, objective, mechanism = stage
        return release_lib.release(
            objective,
            batches,
            mechanism=mechanism,
            ledger=self.ledger,
            name=name,
            noise=self.noise,
            clip=self.head.clip,
            notes=self._notes(),
        )

    @functools.cached_property
    def _features(self):
        # One compiled map for the check and every read of the output
        # layer's objective: scales are variables.
        return self._function(self.inputs)

    def _function(self, tensor):
        if tensor is self.model.inputs[0]:
            return lambda x: np.asarray(x)
        extractor = keras.Model(self.model.inputs[0], tensor)
        return lambda x: np.asarray(extractor.predict_on_batch(x))

    def _padded(self, data):
        """Batches of one shape, `(x, y, records)`: no second trace for the
        last one."""
        expected = self.model.inputs[0].shape[1:]
        for x, y in records.batches(data, _READ_BATCH):
            if len(x.shape[1:]) != len(expected) or any(
                e is not None and e != d for e, d in zip(expected, x.shape[1:])
            ):
                raise ValueError(
                    f"Records must have shape {tuple(expected)}, as the "
                    f"model's input. Received: {x.shape[1:]}"
                )
            if x.dtype.kind == "f" and not np.all(np.isfinite(x)):
                raise ValueError(
                    "`data` has NaN or infinite inputs. Clean the records "
                    "before the release; nothing was spent."
                )
            n = len(x)
            if n < _READ_BATCH:
                filler = np.zeros((_READ_BATCH - n, *x.shape[1:]), x.dtype)
                x = np.concatenate([x, filler])
            yield x, y, n

    # What the layers learn -----------------------------------------------

    def install(self, start):
        """Gives the output layer its released objective."""
        release = self.release
        hessian, minimiser = release.minimise(self.ridge_factor)
        # The objective per record; the estimate comes from the release.
        n = release.estimated_records()
        linear = release.objective.linear_coefficients(release.linear)
        offset = (
            np.vdot(linear, minimiser)
            + np.vdot(minimiser, hessian @ minimiser) / 8
        ) / n
        self.head.set_release(
            hessian / n, minimiser, offset, self.ledger.to_json()
        )
        if start == "minimiser":
            self.head.set_weights_from_minimiser()
