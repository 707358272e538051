"""Refusals that reach the user, where a tool keeps errors to itself."""

import contextlib
import sys
import warnings

from keras_fm.kernel.ledger.ledger import BudgetExceededError

# A search goes on after a trial that failed, and says nothing of the reason.
_SILENT = ("keras_tuner",)


@contextlib.contextmanager
def warn_on_refusal():
    """Inside it an error is a warning, too, if such a tool is in use."""
    try:
        yield
    except (BudgetExceededError, ValueError) as e:
        if any(name in sys.modules for name in _SILENT):
            warnings.warn(f"PrivateModel refused this fit: {e}", stacklevel=2)
        raise
