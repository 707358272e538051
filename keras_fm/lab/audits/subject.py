"""Which model is audited, in which form, and how it is trained."""

import dataclasses
import functools

from keras_fm.kernel import checks
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab import known
from keras_fm.lab.audits import (
    affine_networks,
    dp_sgd,
    functional_net,
    papers,
)
from keras_fm.lab.engine.training import Training

MODELS = known.AUDITED
# Those that read samples at every step: their claim has a delta.
_SAMPLED = ("dpmac", "dp_sgd", "jax_privacy")
# How each is trained, and its control.
_FAMILIES = {
    "ilm": (affine_networks.fit, affine_networks.control),
    "head": (affine_networks.fit, affine_networks.control),
    "adlm": (papers.fit_adlm, papers.control_adlm),
    "dpa": (papers.fit_dpa, papers.control_dpa),
    "dpah": (papers.fit_dpa, papers.control_dpa),
    "pcdbn": (papers.fit_pcdbn, papers.control_pcdbn),
    "pcdbn_te": (papers.fit_pcdbn, papers.control_pcdbn),
    "pcdbn_pw": (papers.fit_pcdbn, papers.control_pcdbn),
    "dpmac": (papers.fit_dpmac, papers.control_dpmac),
    "functional": (functional_net.fit, functional_net.control),
    "dp_sgd": (dp_sgd.fit, dp_sgd.control),
    "jax_privacy": (dp_sgd.fit, dp_sgd.control),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """One model to audit. Every field is public and fixed in advance.

    Args:
        model: one of `MODELS`:
            `ilm`: `PerturbedAffine` - batch normalisation - ReLU - 25 units -
            `PrivateDense`; `head`: `PrivateDense` on a layer that is trained
            (published: dPA's head) or frozen (proven); `adlm`:
            `AdaptiveLaplace`; `dpa`: `DeepPrivateAutoencoder`; `dpah`:
            `BehaviorAutoencoder`; `pcdbn`: `PrivateCDBN`, `pcdbn_te` and
            `pcdbn_pw` with the paper's other polynomials; `dpmac`;
            `functional`: `FunctionalNet`; `dp_sgd`,
            `jax_privacy`: a network of two layers by DP-SGD of
            tensorflow-privacy or jax-privacy, on shuffled batches that are
            accounted as Poisson samples (published) or on such (proven).
        guarantee: `"published"` or `"proven"`.
        epsilon: what the private training claims, or may spend.
        delta: of proven forms and of those that read samples (`dpmac`,
            DP-SGD); the other published claims are pure.
        hidden: units of the first layer (`functional`, published: 256 public
            features for each).
        epochs: of `fit`, where records are trained on in every step.
        control_epochs: of `control`.
        batch_size: int, 0 for all records at once.
        learning_rate: of Adam.
        normalization: of `ilm`, after its first layer: `"batch"`,
            `"minmax"` (over the batch) or `"none"`.
        noise: of `ilm`: `"once"` (the paper) or `"per_step"` (the authors'
            code).

    Raises:
        ValueError: if a value is unknown or outside its range.
    """

    model: str = "ilm"
    guarantee: str = "published"
    epsilon: float = 0.3
    delta: float = 1e-5
    hidden: int = 64
    epochs: int = 600
    control_epochs: int = 600
    batch_size: int = 0
    learning_rate: float = 3e-3
    normalization: str = "batch"
    noise: str = "once"

    def __post_init__(self):
        checks.one_of("model", self.model, MODELS)
        checks.one_of("guarantee", self.guarantee, MODELS[self.model])
        PrivacyBudget(self.epsilon, self.delta)
        checks.fields(
            self,
            hidden=checks.count,
            epochs=checks.count,
            control_epochs=checks.count,
            batch_size=checks.natural,
            learning_rate=checks.norm_bound,
        )

    def functions(self, classes):
        """`(fit, control)` for `keras_fm.audit`.

        `fit` returns `(model, ledger)`, so that the claim, its relation and
        its guarantee come from the ledger. `control` does not depend on
        `epsilon` and `delta`.

        Args:
            classes: int, the public number of classes.
        """
        return tuple(
            functools.partial(self._train, train, classes)
            for train in _FAMILIES[self.model]
        )

    def _train(self, train, classes, x, y):
        return train(self, x, y, classes)

    @property
    def is_published(self):
        return self.guarantee == "published"

    @property
    def neighbours(self):
        """The relation of the claim."""
        return "add_remove" if self.model in _SAMPLED else "replace_one"

    def lot(self, x):
        return min(self.batch_size or len(x), len(x))

    def training(self, x):
        """How the private form is trained on these records."""
        return Training(
            epsilon=self.epsilon,
            delta=self.delta,
            neighbours=self.neighbours,
            epochs=self.epochs,
            lot=self.lot(x),
            learning_rate=self.learning_rate,
        )
