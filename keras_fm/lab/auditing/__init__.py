"""Audits: lower bounds on the epsilon of a mechanism, by attacks on it."""

from keras_fm.lab.auditing.objective import audit_objective
from keras_fm.lab.auditing.report import AuditReport, Claim

__all__ = [
    "AuditReport",
    "Claim",
    "audit_objective",
]
