"""The one ledger of an estimator and of all its copies."""

import os
import threading

from keras_fm.kernel import checks
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_text import ONE_RECORD


class SharedLedger:
    """Gives every fit of an estimator and its copies one ledger.

    Copies and clones share this object. A pickle does not carry a ledger in
    memory: another process, or the same one later, needs a ledger in a file.

    Attributes:
        ledger: the `Ledger` of the last fit, or `None`.
    """

    def __init__(self, process=None, text=None):
        self._process = os.getpid() if process is None else process
        self.ledger = text and Ledger.from_json(text)
        # Keys are the paths as given; `None` for the ledger in memory.
        self._ledgers, self._lock = {}, threading.Lock()

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        text = None if self.ledger is None else self.ledger.to_json()
        return SharedLedger, (-1, text)

    def take(self, ledger, budget, neighbours, unit=ONE_RECORD):
        """The `Ledger` that a fit charges.

        Args:
            ledger: `None`, a `Ledger`, or the path of a file.
            budget: `None`, or a `PrivacyBudget`.
            neighbours: `None`, or the relation.
            unit: the privacy unit, if a new ledger is begun.

        Raises:
            ValueError: if budget or relation differ from those of the ledger,
                or if the ledger is in the memory of another process.
        """
        if not isinstance(ledger, Ledger):
            ledger = self._opened(ledger, budget, neighbours, unit)
        for name, given, held in (
            ("epsilon", budget and budget.epsilon, ledger.budget.epsilon),
            ("delta", budget and budget.delta, ledger.budget.delta),
            ("neighbours", neighbours, str(ledger.neighbours)),
        ):
            if given is not None and given != held:
                raise ValueError(
                    f"`{name}` must be as in the ledger, {held}, which this "
                    "estimator shares with its clones. Received: "
                    f"{name}={given}"
                )
        return ledger

    def _opened(self, path, budget, neighbours, unit):
        checks.instance(
            "ledger",
            path,
            (type(None), str, os.PathLike),
            "None, a keras_fm.Ledger, or the path of a file",
        )
        if path is None and self._process != os.getpid():
            raise ValueError(
                "This estimator comes from another process, or from a pickle: "
                "here its ledger in memory would be a second budget for the "
                "same records. Give it a ledger in a file, "
                '`ledger="privacy.json"`, or fit with `n_jobs=1`.'
            )
        with self._lock:
            if path not in self._ledgers:
                relation, begun = neighbours, None
                if path is None or not os.path.exists(path):
                    relation, begun = neighbours or "add_remove", unit
                    if budget is None:
                        raise ValueError(
                            "`epsilon` must be given: the whole budget of the "
                            "records, for all fits of this estimator and its "
                            "clones (or a `Ledger` that has one). Received: "
                            "epsilon=None"
                        )
                if path is None:
                    found = Ledger(budget, neighbours=relation, unit=unit)
                else:
                    found = Ledger.open(
                        path, budget=budget, neighbours=relation, unit=begun
                    )
                self._ledgers[path] = found
            return self._ledgers[path]
