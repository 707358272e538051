"""Whole models on neighbouring records: no release moves by more than its noise
was calibrated for, whatever the releases below it were."""

import keras
import numpy as np
import pytest
from private_forms import FORMS, LABELS, N, records_of

import keras_fm as fm
from keras_fm.kernel import mechanisms

pytestmark = [
    pytest.mark.backend,
    pytest.mark.optimised,
    pytest.mark.full,
]

SEARCHED = [form for form in FORMS if "published" not in form]
STRANGE = {
    "ones": lambda shape: np.ones(shape),
    "huge": lambda shape: np.full(shape, 1e15),
    "negative": lambda shape: -1e5 * np.random.default_rng(3).random(shape),
    "subnormal": lambda shape: np.full(shape, 1e-42),
}


@pytest.fixture
def releases(monkeypatch):
    """Function from data to `(exact, norm, sensitivity)` of every release of
    a fit, in which noisy vectors may be those of another fit."""
    perturb = mechanisms.Mechanism.perturb
    found, noisy, replayed = [], [], []

    def watched(self, exact, *arguments, **keywords):
        found.append((exact.astype("float64"), self.norm, self.sensitivity))
        given = replayed[len(noisy) :][:1]
        drawn = given or [perturb(self, exact, *arguments, **keywords)]
        noisy.extend(drawn)
        return drawn[0].copy()

    monkeypatch.setattr(mechanisms.Mechanism, "perturb", watched)

    def releases_of(form, x, y, owners, neighbours, again=False):
        replayed[:] = noisy if again else []
        found.clear()
        noisy.clear()
        make, arguments = FORMS[form]
        unit = {} if owners is None else {"unit": fm.Unit(owners=owners)}
        private = fm.callbacks.PrivateModel(
            arguments.get("budget", fm.PrivacyBudget(4.0, 1e-5)),
            data=(x, y),
            guarantee=fm.Proven(neighbours=neighbours, **unit),
        )
        keras.utils.set_random_seed(0)
        make().fit(x[:8], y[:8], verbose=0, callbacks=[private])
        # Some are several reads that are paid for together.
        assert len(found) >= len(private.ledger.entries) > 0
        return list(found)

    return releases_of


def beside(old, new, neighbours):
    """Rows with new ones spread among them, or in the place of some."""
    at = np.arange(len(new)) * (N // len(new))
    if neighbours == "add_remove":
        return np.insert(old, at, new, axis=0)
    rows = old.copy()
    rows[at] = new
    return rows


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("form", SEARCHED)
def test_no_unit_moves_a_release_by_more_than_its_sensitivity(
    releases, form, neighbours
):
    """A record, and an owner of 30 records among the others."""
    x, longest = records_of(form), 0
    for owners, count in ((None, 1), (np.arange(N) % 13, 30)):
        mine, theirs = owners, owners
        if owners is not None:
            theirs = beside(owners, np.full(count, 99), neighbours)
            # An owner has as many records before as after.
            mine = theirs if neighbours == "replace_one" else owners
        first = releases(form, x, LABELS, mine, neighbours)
        for strange in STRANGE.values():
            new = strange((count, *x.shape[1:])).astype("float32")
            second = releases(
                form,
                beside(x, new, neighbours),
                beside(LABELS, np.zeros(count, int), neighbours),
                theirs,
                neighbours,
                again=True,
            )
            for (a, *noise), (b, *same) in zip(first, second, strict=True):
                assert noise == same
                norm, limit = noise
                order = 1 if norm == "l1" else 2
                longest = max(longest, np.linalg.norm(a - b, order) / limit)
                assert longest <= 1 + 1e-9
    # The bounds are not far from what is attained.
    assert longest > 0.5
