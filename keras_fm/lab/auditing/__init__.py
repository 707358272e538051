"""Audits: lower bounds on what a mechanism really reveals."""

from keras_fm.lab.auditing.objective import audit_objective
from keras_fm.lab.auditing.report import AuditReport, Claim

__all__ = [
    "AuditReport",
    "Claim",
    "audit_objective",
]
