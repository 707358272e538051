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
    """Gives every fit of an estimator and its copies one ledger.

    Attributes:
        ledger: the `Ledger` of the last fit, or `None`.
    """

    def __init__(self):
        self.id, self._process = secrets.token_hex(16), os.getpid()
        self.ledger, self._begun = None, None
        self._lock = threading.Lock()
        # Where a path is, as it was given: the folder that a process works in
        # may change.
        self._places = {}
        # Those of them that were charged.
        self._used = set()
        _known[self.id] = self

    def locate(self, ledger):
        """Keeps which file a path means, now and in every copy."""
        if isinstance(ledger, (str, bytes, os.PathLike)):
            path = os.fsdecode(ledger)
            self._places.setdefault(path, os.path.abspath(path))

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        text = None if self.ledger is None else self.ledger.to_json()
        return _found, (self.id, self._places, self._used, text)

    def take(self, ledger, budget, neighbours):
        """The `Ledger` that a fit charges.

        Args:
            ledger: `None` for the one that the first fit begins, a path, or
                a `Ledger`.
            budget: a `PrivacyBudget`, or `None` for that of the ledger.
            neighbours: the relation, or `None` for that of the ledger.

        Raises:
            ValueError: if the ledger has other terms, or the one of this
                estimator is in the memory of another process.
        """
        if ledger is None:
            ledger = self._own(budget, neighbours)
        elif not isinstance(ledger, Ledger):
            ledger = self._opened(ledger, budget, neighbours)
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
        if self._process != os.getpid():
            raise ValueError(
                "This estimator comes from another process, where its ledger "
                "was in memory: here it would be a second budget for the "
                "same records. Give it a ledger in a file, "
                '`ledger="privacy.json"`, or fit with `n_jobs=1`.'
            )
        with self._lock:
            if self._begun is None:
                self._begun = Ledger(
                    _needed(budget), neighbours=neighbours or "add_remove"
                )
            return self._begun

    def _opened(self, path, budget, neighbours):
        wanted = "None, a keras_fm.Ledger, or the path of a file"
        checks.instance("ledger", path, (str, bytes, os.PathLike), wanted)
        place = self._places[os.fsdecode(path)]
        if self.ledger and self.ledger.path == os.path.realpath(place):
            return self.ledger
        if not os.path.exists(place):
            if place in self._used:
                raise ValueError(
                    f"The ledger {place!r} is gone, and what a copy of this "
                    "estimator spent with it. Put it back."
                )
            budget = _needed(budget)
            neighbours = neighbours or "add_remove"
        self._used.add(place)
        return Ledger.open(place, budget=budget, neighbours=neighbours)


def _found(id_, places, used, text):
    """What a pickle stands for: in its own process the same object."""
    found = _known.get(id_)
    if found is None:
        found = SharedLedger()
        found.id, found._process = id_, None
        found.ledger = text and Ledger.from_json(text)
        _known[id_] = found
    found._places = {**places, **found._places}
    found._used |= used
    return found


def _needed(budget):
    if budget is None:
        raise ValueError(
            "`epsilon` must be given: the whole budget of the records, for "
            "all fits of this estimator and its clones (or a `Ledger` that "
            "has one). Received: epsilon=None"
        )
    return budget
