"""Data sets of the experiments, and what to do where one is missing."""

import dataclasses

import numpy as np

from keras_fm import datasets

# Of pCDBN's windows (N).
_PRINTED_STEPS = 4


class MissingDataError(ValueError):
    """A data set is neither on this machine nor to be had."""


def images(name):
    """`(x, y), (x_test, y_test)` of images; see `keras_fm.datasets.load`.

    Raises:
        MissingDataError: if it is not found and cannot be downloaded.
        ValueError: if the name is unknown.
    """
    return _load(name)


def network(name):
    """A `keras_fm.datasets.HealthNetwork`."""
    return _load(name)


def flat_images(name):
    """`images`, every record one row."""
    return tuple(
        (x.reshape(len(x), -1).astype("float32"), y) for x, y in images(name)
    )


def windows(name):
    """Training and test windows of eleven past steps (pCDBN)."""
    return network(name).windows(history=11).split(0.8)


def printed_windows(name):
    """Windows of four steps, as many of either class; a tenth of them, at
    random, for testing (pCDBN as printed)."""
    members = network(name)
    found = members.windows(history=_PRINTED_STEPS - 1)
    rng = np.random.default_rng(0)
    classes = [
        rng.permutation(np.flatnonzero(found.y == label)) for label in (0, 1)
    ]
    few = min(map(len, classes))
    rows = rng.permutation(np.concatenate([c[:few] for c in classes]))
    tests = len(rows) // 10
    return tuple(
        _with_members(members, found.take(part))
        for part in (rows[tests:], rows[:tests])
    )


def _with_members(network, found):
    """Windows with the attributes of all members, at the window's steps,
    beside them: the sum of pCDBN's Eqs. 25 and 26 as we read it, a mean."""
    low, high = network.bounds.T.astype("float32")
    values = np.clip(network.attributes, low, high).swapaxes(0, 1)
    copies = _PRINTED_STEPS * network.users
    width, more = found.x.shape[1], copies * len(low)
    x = np.empty((len(found), width + more), "float32")
    x[:, :width] = found.x
    for step in np.unique(found.steps):
        past = values[step - np.arange(_PRINTED_STEPS)]
        x[found.steps == step, width:] = past.ravel()
    # So far away that their sum, between the bounds, is a mean: a plain sum
    # saturates every map within a few steps.
    far = low + more * (high - low)
    return dataclasses.replace(
        found,
        x=x,
        names=found.names + ("member",) * more,
        columns=found.columns | {"members": slice(width, width + more)},
        low=np.concatenate([found.low, np.tile(low, copies)]),
        high=np.concatenate([found.high, np.tile(far, copies)]),
        reach=network.users - 1,
        note="Every row uses the attributes of all users at its steps.",
    )


def recent_windows(name):
    """Training and test windows of three past steps, friends public (dPA)."""
    return network(name).windows(history=3, social="public").split(0.8)


def images_and_windows(name):
    """Images, and the weekly network beside them."""
    return images(name), windows("health_network_weekly")


def _load(name):
    try:
        return datasets.load(name)
    except ValueError:
        # An unknown name or a broken file: its words say what is wrong.
        raise
    except Exception as e:
        # Loaders raise what their downloads raise, bare `Exception` too.
        raise MissingDataError(
            f"The data set {name!r} was not found and could not be "
            f"downloaded ({type(e).__name__}: {_first_line(e)}). Put "
            f"{name}.npz (x_train, y_train, x_test, y_test) into a folder "
            "and name the folder in KERAS_FM_DATA, connect this machine, or "
            "substitute data that are always there by --data=digits; the "
            "paper's numbers are then left out."
        ) from e


def _first_line(e):
    return (str(e).splitlines() or [""])[0][:200]
