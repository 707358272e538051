"""Private Keras layers and losses by the functional mechanism.

Perturb the coefficients of an objective once, then train with ordinary
`compile` and `fit` for as long as you like.
"""

from keras_fm import (
    auditing,
    baselines,
    callbacks,
    composition,
    datasets,
    experiments,
    features,
    filters,
    layers,
    losses,
    mechanisms,
    models,
    objectives,
    polynomials,
    relevance,
    sampling,
)
from keras_fm.auditing import audit
from keras_fm.budget import Neighbours, PrivacyBudget
from keras_fm.ledger import BudgetExceededError, Ledger
from keras_fm.ledger_entry import LedgerEntry
from keras_fm.release import Release
from keras_fm.rounds import Rounds
from keras_fm.version import __version__

__all__ = [
    "BudgetExceededError",
    "Ledger",
    "LedgerEntry",
    "Neighbours",
    "PrivacyBudget",
    "Release",
    "Rounds",
    "__version__",
    "audit",
    "auditing",
    "baselines",
    "callbacks",
    "composition",
    "datasets",
    "experiments",
    "features",
    "filters",
    "layers",
    "losses",
    "mechanisms",
    "models",
    "objectives",
    "polynomials",
    "relevance",
    "sampling",
]
