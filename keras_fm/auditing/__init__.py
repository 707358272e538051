"""Audits: lower bounds on what a mechanism really reveals."""

from keras_fm.auditing.bounds import (
    CoinRunBound,
    coin_run_bound,
    coin_run_epsilon,
    one_run_epsilon,
    one_run_p_value,
)
from keras_fm.auditing.canaries import (
    CanaryPlan,
    PlantedCanaries,
    canary_losses,
    include_scores,
    swap_scores,
)
from keras_fm.auditing.gaussian_bounds import one_run_gaussian_epsilon
from keras_fm.auditing.gradient_score import gradient_losses
from keras_fm.auditing.many_run_bounds import ManyRunBound, many_run_epsilon
from keras_fm.auditing.objective import (
    ObjectiveAudit,
    audit_objective,
    worst_pair,
)
from keras_fm.auditing.one_run import (
    OneRunBound,
    default_guess_counts,
    one_run_best,
)
from keras_fm.auditing.report import AuditReport, Claim, SeedRun
from keras_fm.auditing.shuffled_batches import (
    ShuffledBound,
    last_weights_epsilon,
    shuffled_batches_epsilon,
)
from keras_fm.auditing.training_audit import audit
from keras_fm.auditing.white_box import (
    log_likelihood_ratio,
    record_difference,
    release_epsilon,
    releases_epsilon,
)

__all__ = [
    "AuditReport",
    "CanaryPlan",
    "Claim",
    "CoinRunBound",
    "ManyRunBound",
    "ObjectiveAudit",
    "OneRunBound",
    "PlantedCanaries",
    "SeedRun",
    "ShuffledBound",
    "audit",
    "audit_objective",
    "canary_losses",
    "coin_run_bound",
    "coin_run_epsilon",
    "default_guess_counts",
    "gradient_losses",
    "include_scores",
    "last_weights_epsilon",
    "log_likelihood_ratio",
    "many_run_epsilon",
    "one_run_best",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "one_run_p_value",
    "record_difference",
    "release_epsilon",
    "releases_epsilon",
    "shuffled_batches_epsilon",
    "swap_scores",
    "worst_pair",
]
