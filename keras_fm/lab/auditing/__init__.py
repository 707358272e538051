"""Audits: lower bounds on what a mechanism really reveals."""

from keras_fm.lab.auditing.objective import audit_objective
from keras_fm.lab.auditing.report import AuditReport, Claim
from keras_fm.lab.auditing.shuffled_batches import (
    last_weights_epsilon,
    shuffled_batches_epsilon,
)
from keras_fm.lab.auditing.training_audit import audit
from keras_fm.lab.auditing.white_box import release_epsilon

__all__ = [
    "AuditReport",
    "Claim",
    "audit",
    "audit_objective",
    "last_weights_epsilon",
    "release_epsilon",
    "shuffled_batches_epsilon",
]
