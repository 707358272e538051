"""The error if a step on private records fails.

A backend's message may show values of a record, such as an index that is out of
range. Errors that follow from it would print it too.
"""

import functools
import re

# Our refusals of batches hold no number of a record; TensorFlow wraps them into
# its own errors.
_OF_BATCHES = re.compile(
    r"A sample exceeded its capacity of \d+ records|"
    r"`augment` failed on a record|"
    r"All batches of `x` must hold rows of one shape|"
    r"`y` must hold whole numbers from 0 to \d+|"
    r"`y` holds a label that is not among the public `classes`|"
    r"Keras requested the batch of an earlier step again"
)


def without_records(step, name):
    """A compiled step whose errors reveal nothing about the records.

    Args:
        step: function that Keras calls with batches.
        name: of the model.
    """
    if getattr(step, "tells_no_records", False):
        return step

    @functools.wraps(step)
    def guarded(*arguments):
        try:
            return step(*arguments)
        except Exception as e:
            if _ends_an_epoch(e):
                raise
            told = _OF_BATCHES.search(str(e))
            failed = f"({told.group() if told else type(e).__name__})"
        # Outside of `except`, which would chain the first error.
        raise RuntimeError(
            f"A step of '{name}' failed on the records {failed}; the steps of "
            "this epoch stay charged. The backend's message is left out, "
            "because it may show a record. To see one, run the same fit "
            "without privacy on made-up records."
        )

    guarded.tells_no_records = True
    return guarded


def _ends_an_epoch(error):
    """Whether the error means that no batch is left; Keras catches it."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"StopIteration", "OutOfRangeError"})
