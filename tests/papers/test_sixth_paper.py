"""A paper from outside the package goes the whole way, without a change in
it: released, saved, loaded, refused, audited, compared."""

import itertools

import keras
import numpy as np
import pytest
import sixth_paper

import keras_fm as fm
from keras_fm.kernel.release import calibrate, release
from keras_fm.lab import compare

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]

GENERATOR = np.random.default_rng(0)
Y = np.arange(600) % 3
CENTRES = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
X = (CENTRES[Y] + GENERATOR.normal(0, 0.2, (600, 4))).astype("float32")
QUERY = sixth_paper.ClassMeansQuery(num_features=4, num_classes=3)


def test_no_pair_exceeds_the_sensitivity_and_one_reaches_it():
    corners = [*np.eye(4), *-np.eye(4), np.full(4, 0.5), -np.full(4, 0.5)]
    records = [(h[None], np.array([c])) for h in corners for c in (0, 1)]
    found = {
        index: QUERY.accumulate(QUERY.zero(), *record)[0]
        for index, record in enumerate(records)
    }
    for norm, p in (("l1", 1), ("l2", 2)):
        alone = max(np.linalg.norm(v.ravel(), p) for v in found.values())
        stated = QUERY.sensitivity(norm, neighbours="add_remove")
        assert alone == pytest.approx(stated, rel=1e-12)
        pairs = itertools.combinations(found.values(), 2)
        apart = max(np.linalg.norm((a - b).ravel(), p) for a, b in pairs)
        stated = QUERY.sensitivity(norm, neighbours="replace_one")
        assert apart == pytest.approx(stated, rel=1e-12)


def test_it_is_released_saved_loaded_and_refused(tmp_path):
    made = sixth_paper.model((4,), 3)
    with pytest.raises(ValueError, match="ClassMeans 'means' has no release"):
        made.fit(X, Y, verbose=0)
    private = sixth_paper.private(fm.PrivacyBudget(1.0, 1e-5), X, Y)
    assert "means (proven)" in private.plan(made)
    history = made.fit(X, Y, epochs=2, callbacks=[private], verbose=0).history
    assert set(history) == {"loss"}
    assert 0.98 < private.ledger.epsilon() <= 1.0 + 1e-9
    assert "tests/sixth_paper.py" in private.report()
    assert made.evaluate(X, Y, verbose=0)[1] > 0.9

    made.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), made.predict(X, verbose=0)
    )
    before = loaded.get_weights()
    # Of what it trains on, no record is a part.
    loaded.fit(-X, Y, verbose=0)
    for a, b in zip(before, loaded.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)
    loaded.layers[-1].means.assign(loaded.layers[-1].means + 1)
    with pytest.raises(ValueError, match="no longer those of the release"):
        loaded.fit(X, Y, verbose=0)

    private.release.save(tmp_path / "release.npz")
    again = fm.Release.load(tmp_path / "release.npz")
    np.testing.assert_array_equal(again.means(), private.release.means())


def test_its_release_is_audited():
    """Above epsilon with probability below 1e-6."""
    spent = fm.PrivacyBudget(2.0, 1e-5)
    found = fm.auditing.audit_objective(
        QUERY,
        calibrate(QUERY, spent, neighbours="add_remove"),
        spent,
        (np.eye(4)[:1], np.array([0])),
        noise=fm.mechanisms.NoiseSource(),
        confidence=1 - 1e-6,
    )
    assert found.reach == pytest.approx(1.0)
    assert 0.5 < found.share <= 1


def test_noise_to_zero_gives_the_means():
    mechanism = calibrate(
        QUERY, fm.PrivacyBudget(1e6, 0.0), neighbours="add_remove"
    )
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    found = release(
        QUERY,
        [(rows, Y)],
        mechanism=mechanism,
        ledger=fm.Ledger(fm.PrivacyBudget(1e6, 0.0), neighbours="add_remove"),
        name="means",
        noise=fm.mechanisms.NoiseSource(),
    )
    exact = [rows[Y == c].mean(axis=0) for c in range(3)]
    np.testing.assert_allclose(found.means(), exact, atol=1e-3)


@pytest.mark.once
def test_it_is_compared_with_the_others(monkeypatch, tmp_path):
    method = sixth_paper.METHOD
    monkeypatch.setitem(compare.METHODS, method.name, method)
    spec = compare.Comparison(
        methods=(method.name, "one_release"),
        epsilons=(4.0,),
        hidden=0,
        seeds=1,
        epochs=1,
    )
    found = compare.run(spec, tmp_path, progress=False)
    table = compare.table(found)
    assert "proven, class means" in table
    (row,) = (o for o in found if o.method == method.name)
    assert row.accuracy > 0.7 and 3.9 < row.proven <= 4 + 1e-9
