"""The folder that a command writes: tried before anything is trained, and
written by one command at a time."""

import contextlib
import os
import tempfile

from keras_fm.kernel.ledger import locked_file


def _lock(path):
    """Its file is empty and stays; the lock ends with the process."""
    return locked_file.LockedFile(os.path.join(path, ".writing"))


@contextlib.contextmanager
def held(path):
    """Makes a folder and keeps others out of it.

    Args:
        path: of the folder; `None` or "" for none.

    Raises:
        ValueError: if no file can be written there, or another command
            writes there now.
    """
    if not path:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(path, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
            stack.enter_context(_lock(path).lock(patience=0))
        except TimeoutError:
            raise ValueError(
                f"Another command writes to {str(path)!r} now. Wait until it "
                "has finished, or name another folder with `out`."
            ) from None
        except OSError as e:
            raise _unwritable(path, e, "out") from e
        yield


def check(path, name="out"):
    """Refuses, as `held` would, what cannot be written now; leaves nothing
    behind. `name` is that of the argument."""
    if not path:
        return
    if _lock(path).has_lock():
        with held(path):
            return
    # What would be made must be makeable in what is there.
    there = os.path.abspath(path)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as e:
        raise _unwritable(path, e, name) from e


def _unwritable(path, error, name):
    return ValueError(
        f"`{name}` must be a folder in which files can be written. "
        f"Received: {name}={str(path)!r} ({error.strerror})"
    )
