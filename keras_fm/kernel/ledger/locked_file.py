"""A text file that several processes replace, one after the other.

A reader finds the old text or the new one, never a part of one. A killed
process leaves one of the two and releases the lock: the kernel holds locks,
they are not files that stay behind.
"""

import contextlib
import errno
import os
import time

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

_PATIENCE = 300.0
_PAUSE = 0.01
_LARGEST = 64_000_000


class LockedFile:
    """The file at `path`, with a lock beside it (`path` + ".lock").

    The lock file is empty and stays. If it were removed, two processes could
    lock two files of the same name.

    Args:
        path: the file. Links are followed once, here, so that all names of
            one file share one lock.

    Raises:
        ValueError: if it is a folder.
    """

    def __init__(self, path):
        self.path = os.path.realpath(os.fsdecode(path))
        if os.path.isdir(self.path):
            raise ValueError(
                "`path` must be a file. Received a folder. Write "
                f"{os.path.join(self.path, 'privacy.json')!r}."
            )
        # Handle of the lock file, while this object holds the lock.
        self._handle = None

    @contextlib.contextmanager
    def lock(self, patience=None):
        """Locks the file exclusively, against threads and processes.

        Args:
            patience: seconds to wait for the lock, or `None` for five minutes.

        Raises:
            TimeoutError: if somebody else holds the lock that long.
            OSError: if the lock file cannot be made.
        """
        patience = _PATIENCE if patience is None else patience
        deadline = time.monotonic() + patience
        while True:
            # A file object closes itself and so releases the lock, even if
            # an interruption comes between any two lines here.
            with open(f"{self.path}.lock", "ab", buffering=0) as file:
                handle = file.fileno()
                while not _try_lock(handle):
                    if time.monotonic() > deadline:
                        raise TimeoutError(
                            "Another process has held the lock of "
                            f"{self.path!r} for {patience:g} seconds. If that "
                            "process hangs, end it: its lock ends with it."
                        )
                    time.sleep(_PAUSE)
                # During the wait the lock file may have been removed. Others
                # then make a new one and lock that.
                if self._is_lock(handle):
                    self._handle = handle
                    try:
                        yield
                    finally:
                        self._handle = None
                    # Closing the file releases the lock. So does the end of
                    # the process.
                    return

    def _is_lock(self, handle):
        """Whether an open file is the lock file that others would open."""
        try:
            found = os.stat(f"{self.path}.lock")
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(handle))

    def read(self):
        """The text, or `None` if there is no file. Needs the lock.

        Raises:
            ValueError: if it is larger than 64 MB or not UTF-8, or hard links
                give it several names.
        """
        try:
            names = os.stat(self.path).st_nlink
            if names > 1:
                raise ValueError(
                    f"it has {names} names (hard links). A write replaces the "
                    "file under one of them, so each name would be a budget "
                    "of its own. Remove the others; a symbolic link may stand "
                    "in their place."
                )
            return read_text(self.path)
        except FileNotFoundError:
            return None

    def write(self, text):
        """Replaces the text, on disk when it returns. Needs the lock.

        Raises:
            OSError: if it cannot be written, or the lock file was removed or
                replaced since it was locked: others may have written.
        """
        if self._handle is not None and not self._is_lock(self._handle):
            raise OSError(
                f"The lock file {self.path + '.lock'!r} was removed while it "
                "was held, so other processes were not locked out. Nothing "
                "was written; leave the lock file where it is, and try again."
            )
        temporary = f"{self.path}.tmp"
        # Left by a process that was killed here.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, os.stat(self.path).st_mode & 0o777)
        _replace(handle, temporary, self.path, text)


def read_text(path):
    """The text of a file in UTF-8, at most 64 MB.

    Raises:
        ValueError: if it is larger, or not UTF-8.
        OSError: if it cannot be read.
    """
    with open(path, "rb") as f:
        raw = f.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST / 1e6:g} MB")
    return raw.decode("utf-8")


def _replace(handle, temporary, path, text):
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(os.path.dirname(path))


def _sync_folder(folder):
    """Makes renames in a folder survive a power failure."""
    if fcntl is None:
        return  # Windows cannot open folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as e:
        # Some network file systems have no such call.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _try_lock(handle):
    try:
        if fcntl is None:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True
