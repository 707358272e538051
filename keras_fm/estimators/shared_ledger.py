"""The one ledger of an estimator and of all its copies.

scikit-learn copies estimators freely: a grid search clones, workers get
pickles. Copies with a budget each would be many budgets for one set of records,
so all of them hold the same `SharedLedger`.
"""

import os
import secrets
import threading
import weakref

from keras_fm.kernel import checks
from keras_fm.kernel.ledger.ledger import Ledger

# By id: a pickle that comes back to its process is what it was.
_known: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


class SharedLedger:
    """Gives every fit of an estimator and its copies one ledger."""

    def __init__(self):
        self.id, self._process = secrets.token_hex(16), os.getpid()
        self._begun, self._lock = None, threading.Lock()
        # By path as it was given: where that is, and the `Ledger` that was
        # found there, of another process its id.
        self._files = {}
        _known[self.id] = self

    def locate(self, ledger):
        """Keeps which file a path means, now and in every copy: the folder
        that a process works in may change."""
        if isinstance(ledger, (str, bytes, os.PathLike)):
            path = os.fsdecode(ledger)
            self._files.setdefault(path, (os.path.abspath(path), None))

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        files = {
            path: (place, getattr(ledger, "id", ledger))
            for path, (place, ledger) in self._files.items()
        }
        return _found, (self.id, files)

    def take(self, ledger, budget, neighbours):
        """The `Ledger` that a fit charges.

        Args:
            ledger: `None` for the one that the first fit begins, a path, or
                a `Ledger`.
            budget: a `PrivacyBudget`, or `None` for that of the ledger.
            neighbours: the relation, or `None` for that of the ledger.

        Raises:
            ValueError: if the ledger has other terms, is in the memory of
                another process, or its file was removed or replaced.
        """
        if ledger is None:
            ledger = self._own(budget, neighbours)
        elif not isinstance(ledger, Ledger):
            ledger = self._opened(ledger, budget, neighbours)
        if ledger.path is None:
            self._check_process()
        for name, given, held in (
            ("epsilon", budget and budget.epsilon, ledger.budget.epsilon),
            ("delta", budget and budget.delta, ledger.budget.delta),
            ("neighbours", neighbours, str(ledger.neighbours)),
        ):
            if given is not None and given != held:
                raise ValueError(
                    f"`{name}` must be that of the ledger, {held}, which "
                    "this estimator shares with its clones. Received: "
                    f"{name}={given}"
                )
        return ledger

    def _own(self, budget, neighbours):
        self._check_process()
        with self._lock:
            if self._begun is None:
                self._begun = Ledger(
                    _needed(budget), neighbours=neighbours or "add_remove"
                )
            return self._begun

    def _opened(self, path, budget, neighbours):
        checks.instance(
            "ledger",
            path,
            (str, bytes, os.PathLike),
            "None, a keras_fm.Ledger, or the path of a file",
        )
        path = os.fsdecode(path)
        with self._lock:
            place, ledger = self._files[path]
            if isinstance(ledger, Ledger):
                return ledger
            there = os.path.exists(place)
            if ledger is None:
                if not there:
                    budget = _needed(budget)
                    neighbours = neighbours or "add_remove"
                found = Ledger.open(place, budget=budget, neighbours=neighbours)
            else:
                found = Ledger.open(place) if there else None
                if found is None or found.id != ledger:
                    raise ValueError(
                        f"The ledger {place!r} is gone, or another is in its "
                        "place, and what a copy of this estimator spent with "
                        "it. Put it back."
                    )
            self._files[path] = place, found
            return found

    def _check_process(self):
        if self._process != os.getpid():
            raise ValueError(
                "This estimator comes from another process, where its ledger "
                "was in memory: here it would be a second budget for the "
                "same records. Give it a ledger in a file, "
                '`ledger="privacy.json"`, or fit with `n_jobs=1`.'
            )


def _found(id_, files):
    """What a pickle stands for: in its own process the same object."""
    found = _known.get(id_)
    if found is None:
        found = SharedLedger()
        found.id, found._process = id_, None
        _known[id_] = found
    found._files = {**files, **found._files}
    return found


def _needed(budget):
    if budget is None:
        raise ValueError(
            "`epsilon` must be given: the whole budget of the records, for "
            "all fits of this estimator and its clones (or a `Ledger` that "
            "has one). Received: epsilon=None"
        )
    return budget
