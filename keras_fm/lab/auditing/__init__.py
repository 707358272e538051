"""Audits: lower bounds on what a mechanism really reveals."""

from keras_fm.lab.auditing.bounds import one_run_epsilon
from keras_fm.lab.auditing.canaries import (
    CanaryPlan,
    canary_losses,
    include_scores,
    swap_scores,
)
from keras_fm.lab.auditing.gaussian_bounds import one_run_gaussian_epsilon
from keras_fm.lab.auditing.many_run_bounds import many_run_epsilon
from keras_fm.lab.auditing.objective import (
    ObjectiveAudit,
    audit_objective,
    worst_pair,
)
from keras_fm.lab.auditing.one_run import one_run_best
from keras_fm.lab.auditing.report import AuditReport, Claim
from keras_fm.lab.auditing.shuffled_batches import (
    last_weights_epsilon,
    shuffled_batches_epsilon,
)
from keras_fm.lab.auditing.training_audit import audit
from keras_fm.lab.auditing.white_box import release_epsilon

__all__ = [
    "AuditReport",
    "CanaryPlan",
    "Claim",
    "ObjectiveAudit",
    "audit",
    "audit_objective",
    "canary_losses",
    "include_scores",
    "last_weights_epsilon",
    "many_run_epsilon",
    "one_run_best",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "release_epsilon",
    "shuffled_batches_epsilon",
    "swap_scores",
    "worst_pair",
]
