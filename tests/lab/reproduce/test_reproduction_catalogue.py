"""The catalogue, the facts, the table, and what a wrong command says."""

import pytest
from absl import flags

from keras_fm.datasets import loaders
from keras_fm.lab import reproduce as reproductions
from keras_fm.lab.commands import reproduce
from keras_fm.lab.reproduce import facts, report
from keras_fm.lab.reproduce.session import Outcome

pytestmark = pytest.mark.once

PAPERS = {"dpa", "pcdbn", "functional_net", "adlm", "dpmac"}


# Facts ---------------------------------------------------------------------


def test_every_paper_is_named_with_its_source():
    assert set(facts.papers()) == PAPERS
    for paper in facts.papers().values():
        assert set(paper) == {"authors", "title", "venue", "year"}
        assert 2016 <= paper["year"] <= 2018


def test_every_fact_stands_beside_an_experiment():
    shown = {f.id for e in reproductions.EXPERIMENTS for f in e.facts}
    assert shown == {f.id for f in facts.load()}


def test_numbers_of_the_papers():
    """Spot checks, from the papers' text."""
    known = {f.id: f for f in facts.load()}
    assert known["adlm-mnist-adlm-0.5"].value == 0.9366
    assert known["adlm-mnist-adlm-0.5"].epochs == 500
    assert known["pcdbn-mnist-pcdbn-0.5"].value == 0.9171
    assert known["dpmac-mnist-dp-mac-8"].value == 0.97
    assert known["dpmac-usps-dp-sgd-1"].value == 11.8
    assert known["pcdbn-seconds-behavior"].value == 2910
    mean = known["adlm-mnist-adlm-mean"]
    assert mean.epsilon is None and mean.epsilon_range == [0.2, 0.5]


# The catalogue -------------------------------------------------------------


def test_every_paper_has_experiments():
    assert {e.paper for e in reproductions.EXPERIMENTS} == PAPERS
    names = [e.name for e in reproductions.EXPERIMENTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "experiment", reproductions.EXPERIMENTS, ids=lambda e: e.name
)
def test_an_experiment_is_whole(experiment):
    """It says where it differs, and every number of the paper stands beside
    a series, or the table shows it alone."""
    assert experiment.deviations and experiment.shows and experiment.title
    assert set(experiment.small) == set(experiment.full)
    assert bool(experiment.facts) != bool(experiment.why_no_facts)
    names = [series.name for series in experiment.series]
    assert len(set(names)) == len(names)
    assert 0 < experiment.minutes <= 90
    assert all(f.paper == experiment.paper for f in experiment.facts)
    assert all(f.metric == experiment.y.name for f in experiment.facts)
    systems = {f.system for f in facts.select(experiment.paper)}
    for series in experiment.series:
        assert set(series.beside) <= systems
    for form in (experiment.small, experiment.full):
        assert form["seeds"] >= 1
        if experiment.load is not None:
            assert form["data"] in loaders.DATASETS
        if any(s.is_private for s in experiment.series):
            assert all(e > 0 for e in form["epsilons"])
    assert list(experiment.jobs(experiment.small))
    for alias in experiment.aliases:
        assert alias.startswith(experiment.paper + ":")
        assert experiment in reproductions.find([alias])


def test_a_printed_epsilon_is_measured_too():
    """So that ours and the paper's stand at the same epsilon."""
    for name in ("adlm:mnist", "dpmac:mnist", "dpmac:usps", "pcdbn:behavior"):
        [experiment] = reproductions.find([name])
        printed = {f.epsilon for f in experiment.facts if f.epsilon}
        for form in (experiment.small, experiment.full):
            assert printed <= set(form["epsilons"]), name


def test_finding():
    [experiment] = reproductions.find(["ADLM:mnist"])
    assert experiment.name == "adlm:mnist"
    figure = [e.name for e in reproductions.find(["adlm:figure-4"])]
    assert figure == ["adlm:mnist", "adlm:mnist-epochs", "adlm:printed"]
    adlm = reproductions.find(["adlm", "adlm:mnist", "adlm:figure-4"])
    assert [e.name for e in adlm] == [*figure, "adlm:cifar10"]
    for name in ("adlm:figure-5", "pcdbn:figure-5", "pcdbn:figure-6",
                 "dpa:figure-2", "dpmac:table-1", "dpmac:table-2"):  # fmt: skip
        assert reproductions.find([name])


# The table -----------------------------------------------------------------


def outcome(name, rows, **settings):
    [experiment] = reproductions.find([name])
    return Outcome(
        experiment=experiment,
        settings={**experiment.small, **settings},
        form="small",
        rows=[
            {
                "at": None,
                "seed": seed,
                "claimed": 0.5,
                "proven": float("inf"),
                "delta": 0.0,
                "neighbours": "replace_one",
                "statement": "",
                "seconds": 1.0,
                "cpu_seconds": 1.0,
                "when": "2020-01-01T00:00:00+00:00",
                "notes": {},
                **row,
            }
            for seed, row in enumerate(rows)
        ],
        facts=experiment.facts,
        skipped={},
        trained=len(rows),
        folder=None,
    )


def test_the_table_subtracts_the_paper_s_number_at_the_same_epsilon():
    rows = [
        {"series": "adlm", "epsilon": e, "curve": [[e, y]]}
        for e, y in ((0.5, 0.9), (0.5, 0.92), (2.0, 0.95))
    ]
    lines = report.table(outcome("adlm:mnist", rows)).splitlines()
    words = ["AdLM,", "authors'", "code"]
    [line] = [x for x in lines if x.split()[:4] == [*words, "0.5"]]
    # (0.9 + 0.92) / 2 against 0.9366, in percent.
    assert "91 +- 1.41" in line and "93.66" in line and "-2.66" in line
    assert "claimed, not proven" in line and " inf " in line
    [line] = [x for x in lines if x.split()[:4] == [*words, "2"]]
    assert "93.66" not in line and " - " in line
    # One of our budgets is no mean, and the printed one stands alone.
    [line] = [x for x in lines if "91.62" in x and "AdLM, 91.62" not in x]
    assert line.split()[0] == "-"
    # What has no number of ours is there all the same.
    [line] = [x for x in lines if "88.46" in x]
    assert line.split()[0] == "-"


def test_a_mean_over_budgets_stands_beside_ours_in_its_range():
    rows = [
        {"series": "adlm", "epsilon": e, "curve": [[e, y]]}
        for e, y in ((0.25, 0.9), (0.5, 0.92), (2.0, 0.95))
    ]
    lines = report.table(outcome("adlm:mnist", rows)).splitlines()
    [line] = [x for x in lines if "mean of 2" in x]
    assert "91.62" in line and "-0.62" in line


def test_a_curve_is_compared_by_its_last_point():
    rows = [{"series": "adlm", "epsilon": 0.5, "curve": [[1, 0.2], [12, 0.6]]}]
    made = outcome("adlm:mnist-epochs", rows)
    assert [p["is_last"] for p in report.points(made)] == [False, True]
    [line] = [
        x for x in report.table(made).splitlines() if x.startswith("AdLM, au")
    ]
    assert "0.5, 12" in line and "-33.66" in line


def test_the_command_names_what_was_chosen():
    made = outcome("adlm:mnist", [], epsilons=(0.5,), data="digits", seeds=2)
    assert report.command(made) == (
        "keras-fm reproduce adlm:mnist --epsilons=0.5 --seeds=2 --data=digits"
    )
    made = outcome("adlm:mnist", [], data="my data.npz")
    assert report.command(made).endswith(" '--data=my data.npz'")


# The command ---------------------------------------------------------------


def command(*argv):
    values = flags.FlagValues()
    reproduce.define(values)
    rest = values(["keras-fm reproduce", *argv])[1:]
    return reproduce.run(values, rest)


def test_the_command_runs_and_writes(capsys, tmp_path):
    out = str(tmp_path)
    argv = (f"--out={out}", "--noprogress", "functional_net:theorem-6")
    assert command(*argv) == 0
    shown = capsys.readouterr().out
    assert "Theorem 6, evaluated" in shown and "Written to" in shown
    folder = tmp_path / "functional_net-sensitivity"
    assert (folder / "table.txt").read_text().strip() in shown


def test_nothing_is_written_without_a_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("--out=", "--noprogress", "pcdbn:polynomial") == 0
    assert "Written" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
