"""The ledger that a callback charges: new, continued, or from a file."""

import dataclasses
import functools
import numbers
import sys

from keras_fm.kernel.budget import Neighbours, PrivacyBudget, check_delta_given
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_text import declared_words, proved_unit


def budget_of(epsilon, delta):
    """The budget from the first two arguments of `PrivateModel`, or the ledger
    to continue.

    Raises:
        ValueError: if delta is missing, or passed with a budget or ledger.
    """
    whole = isinstance(epsilon, (PrivacyBudget, Ledger))
    if delta is not None and not isinstance(delta, numbers.Real):
        # Not shown: it may be records that were meant for `data=(x, y)`.
        raise ValueError(
            "`delta` must be a number, and records are given by name, "
            "`data=(x, y)`. Received: delta of type "
            f"{type(delta).__name__}"
        )
    if not whole:
        call = "PrivateModel(epsilon={}, delta={}, data=...)"
        check_delta_given(epsilon, delta, call)
        return PrivacyBudget(epsilon, delta)
    if delta is not None:
        kind = type(epsilon).__name__
        raise ValueError(
            f"`delta` must be left out: a {kind} has its own. Received: a "
            f"{kind} and delta={delta}"
        )
    return epsilon


def opened(budget, guarantee, path):
    """The ledger for a budget and the `ledger` argument of `PrivateModel`.

    Raises:
        ValueError: if a continued ledger has other terms, or if the arguments
            do not fit together.
    """
    ledger = _opened(budget, guarantee, path)
    if ledger.neighbours is Neighbours.REPLACE_LABEL:
        _check_labels_alone(guarantee)
    return ledger


def of_owners(ledger, guarantee, owners, own):
    """The ledger and the guarantee of a fit that protects owners.

    Args:
        ledger, guarantee: those of the callback.
        owners: ids, see `Unit`.
        own: whether only this callback uses the ledger, which then begins anew.

    Raises:
        ValueError: if the ledger protects records.
    """
    if guarantee.kind != "proven":
        raise ValueError(
            "`owners` need a proven guarantee. Leave `guarantee` out. "
            f"Received: guarantee={guarantee.kind!r}"
        )
    unit = dataclasses.replace(guarantee.unit, owners=owners)
    guarantee = dataclasses.replace(guarantee, unit=unit)
    if proved_unit(ledger.unit) == unit.proved:
        return ledger, guarantee
    if not own or ledger.entries:
        raise ValueError(
            f"The ledger of this fit protects {ledger.unit!r}, and cannot "
            "count these owners as well. Begin one for owners: "
            "`PrivateModel(..., guarantee=Proven(unit=Unit(owners=ids)))`."
        )
    same = dataclasses.replace(guarantee, neighbours=str(ledger.neighbours))
    return opened(ledger.budget, same, None), guarantee


def _check_labels_alone(guarantee):
    """Refuses settings without a proof for secret labels alone."""
    if guarantee.kind == "published":
        raise ValueError(
            'guarantee="published" does not support '
            'neighbours="replace_label", which none of the papers claims. Use '
            '"replace_one".'
        )
    if guarantee.unit.owners is not None or guarantee.unit.reach:
        raise ValueError(
            'neighbours="replace_label" protects the label of one record: '
            "`owners` and `reach` of a Unit are not supported. Use "
            '"replace_one", which protects all records of an owner with their '
            "labels."
        )


def _opened(budget, guarantee, path):
    unit, neighbours = guarantee.unit, guarantee.neighbours
    if not isinstance(budget, Ledger):
        if neighbours is None:
            neighbours = guarantee.own_neighbours
        if path is None:
            _propose_file()
            return Ledger(budget, neighbours=neighbours, unit=unit.name)
        if isinstance(path, Ledger):
            raise ValueError(
                "`ledger` must be the path of a file. To charge a Ledger, pass "
                "it in place of the budget: `PrivateModel(ledger, data=...)`."
            )
        return Ledger.open(
            path, budget=budget, neighbours=neighbours, unit=unit.name
        )
    if path is not None:
        raise ValueError(
            "`ledger` must be left out if the budget is a Ledger. To keep that "
            "one in a file, open it there: `keras_fm.Ledger.open(path, ...)`."
        )
    if neighbours is not None and neighbours != str(budget.neighbours):
        raise ValueError(
            "`neighbours` must be that of the ledger that is continued, "
            f"{str(budget.neighbours)!r}. Received: neighbours={neighbours!r}"
        )
    _check_unit(budget.unit, unit)
    return budget


@functools.cache
def _propose_file():
    """Warns once in a notebook: a cell that is run twice spends twice."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # IPython in a terminal has no kernel.
    if getattr(shell, "kernel", None) is not None:
        print(
            "keras_fm: every run of this cell spends the budget again; "
            '`PrivateModel(..., ledger="privacy.json")` counts all runs.'
        )


def _check_unit(held, unit):
    """Refuses to charge releases for one unit to a ledger of another. A
    guarantee for records does not protect owners. One for owners does not
    protect records if an owner only gains or changes a record."""
    words, held_words = unit.words, declared_words(held)
    if words is not None and words != held_words:
        raise ValueError(
            f"`unit` must be that of the ledger that is continued, {held!r}. "
            f"Received: words={words!r}"
        )
    proved = proved_unit(held)
    # If a ledger's unit is words alone, the owners are that unit, or repeating
    # the words declares that each has one row.
    fits = words is not None or unit.owners is not None
    if proved is not None:
        fits = proved == unit.proved
    if not fits:
        raise ValueError(
            f"The privacy unit of the ledger that is continued is {held!r}. If "
            "that is an owner of several records, pass `owners`; if it is one "
            "record, repeat its words, `Unit(words=...)`. One ledger cannot "
            "count both records and owners."
        )
