"""A tiny run of every experiment: substitute data, least settings."""

import csv
import dataclasses
import functools
import json
import math
import os

import keras
import pytest

from keras_fm import datasets
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.lab import reproduce as reproductions
from keras_fm.lab.engine import rival
from keras_fm.lab.reproduce import report, session

pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.once,
    pytest.mark.full,
]

WEEKLY = "health_network_weekly"
_DIGITS = {"maps": ((2, 3), (2, 3)), "dense": 4, "records": 200, "lot": 100}
_ADLM = {"epochs": 1, "lot": 100, "pretraining_epochs": 1}
_EAGER = keras.backend.backend() != "jax"
# For every runner: series that every backend trains, more of them where a
# step need not be compiled, and least settings.
TINY = {
    "dpa:health-cardinality": (
        ("one_release", "fm"),
        ("dpah_pure", "dp_sgd", "dpah_published", "sctrbm"),
        {
            "hidden": (4, 4),
            "pretraining_epochs": 1,
            "epochs": 1,
            "rbm_epochs": 1,
            "rates": (0.5,),
        },
    ),
    "dpa:health-points": (("fm",), (), {"points": (5,)}),
    "pcdbn:behavior": (
        ("dpah",),
        ("pcdbn_te",),
        {"epsilons": (8.0,), "epochs": 2, "pretraining_epochs": 1},
    ),
    "pcdbn:mnist": (
        ("proven",),
        ("dp_sgd",),
        {**_DIGITS, "epsilons": (8.0,), "epochs": 2},
    ),
    "pcdbn:mnist-epochs": ((), ("code",), {**_DIGITS, "epochs": 3}),
    "pcdbn:polynomial": (
        ("printed", "chebyshev", "taylor", "piecewise"),
        (),
        {"degrees": (1, 3)},
    ),
    "pcdbn:seconds": ((), ("published",), _DIGITS),
    "functional_net:composition": (("printed", "theorem"), (), {}),
    "functional_net:sensitivity": (
        ("printed", "reached"),
        (),
        {"steps": 100, "climbs": 1},
    ),
    "functional_net:training": (
        ("published",),
        ("proven", "twin"),
        {
            "epsilons": (8.0,),
            "seeds": 1,
            "rounds": 1,
            "units": 4,
            "epochs": 1,
        },
    ),
    "adlm:mnist": (
        ("proven_plain",),
        ("adlm",),
        {
            **_ADLM,
            "epsilons": (8.0,),
            "width": 0.03,
            "features": "pixels",
        },
    ),
    "adlm:printed": ((), ("ilm_printed",), {**_ADLM, "width": 0.03}),
    "adlm:cifar10": ((), ("adlm",), {**_ADLM, "epochs": 3, "width": 0.03}),
    "dpmac:mnist": (
        ("proven",),
        ("published", "twin"),
        {"epsilons": (8.0,), "share_of_epochs": 0.025},
    ),
    "dpmac:printed": (
        (),
        ("printed",),
        {"epsilons": (8.0,), "seeds": 1, "share_of_epochs": 0.03},
    ),
    "dpmac:usps": (
        ("dpa_20",),
        ("strokes", "twin"),
        {
            "epsilons": (8.0,),
            "epochs": 1,
            "stroke_shapes": 100,
            "stroke_steps": 2,
            "stroke_epochs": 1,
        },
    ),
    "dpmac:accounting": (("renyi",), (), {}),
}


def few(data):
    """The first images, or a twentieth of the windows."""
    if isinstance(data, tuple):
        return tuple(few(part) for part in data)
    if isinstance(data, datasets.Windows):
        return data.sample(0.05, seed=0)
    return data[:300]


@functools.cache
def loaded(load, name):
    return few(load(name))


def tiny(name, **kwargs):
    [experiment] = reproductions.find([name])
    data = None
    if experiment.load is not None:
        health = experiment.small["data"].startswith("health")
        data = WEEKLY if health else "digits"
        load = functools.partial(loaded, experiment.load)
        experiment = dataclasses.replace(experiment, load=load)
    names, more, settings = TINY[name]
    experiment = dataclasses.replace(
        experiment,
        series=tuple(map(experiment.find, names + more * _EAGER)),
    )
    return reproductions.run(experiment, data=data, settings=settings, **kwargs)


def test_every_runner_has_a_tiny_run():
    runners = {
        e.measure: e.name in TINY
        for e in sorted(reproductions.EXPERIMENTS, key=lambda e: e.name in TINY)
    }
    assert all(runners.values()), runners


@pytest.mark.parametrize("name", list(TINY))
def test_a_tiny_run(name, tmp_path, monkeypatch):
    """Series train, every epsilon is composed from the ledger, and the files
    are written."""
    # Nothing to choose: one training of two steps.
    monkeypatch.setattr(rival, "search", lambda *_: {2: (0.0, 4.0)})
    if not TINY[name][0] and not _EAGER:
        pytest.skip("compiling takes longer than training")
    outcome = tiny(name, out=str(tmp_path))
    experiment = outcome.experiment
    measured = {row["series"] for row in outcome.rows}
    names = {s.name for s in experiment.series}
    assert measured | set(outcome.skipped) == names
    if rival.available():
        assert not outcome.skipped
    for row in outcome.rows:
        kind = experiment.find(row["series"]).kind
        for _, y in row["curve"]:
            assert math.isfinite(y)
            if experiment.y.name == "accuracy":
                assert 0 <= y <= 1
        if kind == "proven":
            assert 0 < row["proven"] <= row["epsilon"] * (1 + 1e-6)
            assert "no valid proof" not in row["statement"]
        elif kind == "claimed":
            assert row["proven"] == math.inf
            assert row["claimed"] == pytest.approx(row["epsilon"], rel=1e-3)
            assert "not a guarantee" in " ".join(row["statement"].split())
        else:
            assert row["proven"] is None and row["statement"] == ""
    assert sorted(os.listdir(outcome.folder)) == [
        ".writing.lock",
        "figure.png",
        "points.csv",
        "points.jsonl",
        "summary.json",
        "table.txt",
    ]
    with open(os.path.join(outcome.folder, "figure.png"), "rb") as f:
        assert f.read(8) == b"\x89PNG\r\n\x1a\n"
    with open(os.path.join(outcome.folder, "points.csv")) as f:
        rows = list(csv.DictReader(f))
    assert {r["series"] for r in rows} == measured
    with open(os.path.join(outcome.folder, "summary.json")) as f:
        summary = json.load(f)
    assert summary["reproduce"].startswith(f"keras-fm reproduce {name}")
    private = [s.name for s in experiment.series if s.is_private]
    said = {key.split()[0] for key in summary["statements"]}
    assert said == set(private) - set(outcome.skipped)


def test_a_second_run_trains_nothing(tmp_path):
    asked = []

    def measure(job, context):
        asked.append(job)
        return reproductions.Measured(
            curve=((job.epsilon, 0.5 + 0.1 * job.seed),),
            ledger=empty_ledger(job.epsilon),
        )

    run = functools.partial(session.run, toy("claimed", measure))
    first = run(out=str(tmp_path))
    second = run(out=str(tmp_path))
    assert (first.trained, second.trained, len(asked)) == (2, 0, 2)
    assert second.rows == first.rows
    assert report.table(second) == report.table(first)
    # One more budget and one more seed: what is there is not trained again.
    third = run(out=str(tmp_path), epsilons=(0.5, 1.0), seeds=3)
    assert third.trained == 4 and len(third.rows) == 6


def test_a_run_goes_on_where_one_stopped(tmp_path):
    [experiment] = reproductions.find(["pcdbn:polynomial"])
    first = reproductions.run(experiment, out=str(tmp_path))
    path = os.path.join(first.folder, "points.jsonl")
    with open(path) as f:
        lines = f.readlines()
    # One lacks a field, the last was cut short by a crash.
    older = lines[2].replace('"seconds"', '"duration"')
    with open(path, "w") as f:
        f.write("".join([*lines[:2], older]) + lines[3][:20])
    second = reproductions.run(experiment, out=str(tmp_path))
    assert second.trained == len(lines) - 2
    third = reproductions.run(experiment, out=str(tmp_path))
    assert third.trained == 0 and len(third.rows) == len(lines)


def toy(kind, measure, **kwargs):
    series = reproductions.Series(name="ours", label="ours", kind=kind)
    return reproductions.Experiment(
        name="dpa:toy",
        title="a toy",
        shows="nothing",
        dataset="none",
        x=reproductions.Axis(name="epsilon", label="epsilon"),
        y=reproductions.Axis(name="accuracy", label="accuracy, %"),
        series=(series,),
        small={"epsilons": (1.0,), "seeds": 2, "rate": 0.5},
        full={"epsilons": (1.0,), "seeds": 2, "rate": 0.5},
        why_no_facts="a toy.",
        measure=measure,
        **kwargs,
    )


def empty_ledger(claim=None):
    ledger = Ledger(PrivacyBudget(1.0, 1e-5), neighbours="replace_one")
    if claim:
        ledger.charge(
            [
                LedgerEntry(
                    name="output",
                    guarantee="claimed",
                    neighbours="replace_one",
                    mechanism={"claimed_epsilon": claim},
                    uses="everything",
                    proof="none",
                )
            ]
        )
    return ledger


@pytest.mark.parametrize(
    "kind, ledger",
    [
        ("proven", empty_ledger(1.0)),
        ("claimed", empty_ledger()),
        ("no privacy", empty_ledger()),
        ("proven", None),
        ("claimed", None),
    ],
)
def test_what_a_series_says_must_be_in_the_ledger(kind, ledger):
    """A claim can never be drawn as proven, nor the other way."""

    def measure(job, context):
        return reproductions.Measured(curve=((1.0, 0.5),), ledger=ledger)

    with pytest.raises(RuntimeError, match="ledger says"):
        session.run(toy(kind, measure))


def test_seeds_are_set_before_every_job():
    def measure(job, context):
        return reproductions.Measured(
            curve=((1.0, float(keras.random.uniform(()))),),
            ledger=empty_ledger(1.0),
        )

    first, second = (session.run(toy("claimed", measure)) for _ in range(2))
    values = [[r["curve"][0][1] for r in o.rows] for o in (first, second)]
    assert values[0] == values[1] and values[0][0] != values[0][1]


def test_dp_sgd_is_left_out_and_said_where_it_cannot_train(monkeypatch):
    monkeypatch.setattr(rival, "available", lambda: False)

    def measure(job, context):
        assert job.series != "rival"
        return reproductions.Measured(
            curve=((1.0, 0.5),), ledger=empty_ledger(1.0)
        )

    experiment = toy("claimed", measure)
    series = reproductions.Series(
        name="rival", label="DP-SGD", kind="proven", needs_dp_sgd=True
    )
    experiment = dataclasses.replace(
        experiment, series=(*experiment.series, series)
    )
    outcome = session.run(experiment)
    assert list(outcome.skipped) == ["rival"]
    assert "Left out: DP-SGD: tensorflow-privacy" in report.table(outcome)
