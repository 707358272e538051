"""The folder that a command writes: tried before anything is trained, and
written by one command at a time."""

import contextlib
import os
import tempfile

from keras_fm.kernel.ledger import locked_file


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
            # Its file is empty and stays; the lock ends with the process.
            lock = locked_file.LockedFile(os.path.join(path, ".writing"))
            stack.enter_context(lock.lock(patience=0))
        except TimeoutError:
            raise ValueError(
                f"Another command writes to {str(path)!r} now. Wait until it "
                "has finished, or name another folder with `out`."
            ) from None
        except OSError as e:
            raise ValueError(
                "`out` must be a folder in which files can be written. "
                f"Received: out={str(path)!r} ({e.strerror})"
            ) from e
        yield
