"""Private Keras layers and losses by the functional mechanism.

Perturb the coefficients of an objective once, then train with ordinary
`compile` and `fit` for as long as you like.
"""

try:
    import keras as _keras  # noqa: F401
# A broken backend raises whatever it likes.
except Exception as e:
    raise ImportError(
        "keras_fm needs Keras with a backend that can be imported. "
        "`keras-fm doctor` says what to install. Received: "
        f"{type(e).__name__}: {e}"
    ) from e

from keras_fm import (
    auditing,
    baselines,
    callbacks,
    composition,
    datasets,
    experiments,
    feature_cache,
    features,
    filters,
    gathered_reads,
    layers,
    losses,
    mechanisms,
    models,
    objectives,
    partial_statistics,
    polynomials,
    relevance,
    sampling,
    sweeps,
)
from keras_fm.auditing import audit
from keras_fm.budget import Neighbours, PrivacyBudget
from keras_fm.ledger import BudgetExceededError, Ledger
from keras_fm.ledger_entry import LedgerEntry
from keras_fm.release import Release
from keras_fm.rounds import Rounds
from keras_fm.training.guarantee import Proven, Published, Unit
from keras_fm.version import __version__

__all__ = [
    "BudgetExceededError",
    "Ledger",
    "LedgerEntry",
    "Neighbours",
    "PrivacyBudget",
    "Proven",
    "Published",
    "Release",
    "Rounds",
    "Unit",
    "__version__",
    "audit",
    "auditing",
    "baselines",
    "callbacks",
    "composition",
    "datasets",
    "experiments",
    "feature_cache",
    "features",
    "filters",
    "gathered_reads",
    "layers",
    "losses",
    "mechanisms",
    "models",
    "objectives",
    "partial_statistics",
    "polynomials",
    "relevance",
    "sampling",
    "sweeps",
]
