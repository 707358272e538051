"""Folders as the commands write them, made without a training."""

import json

from keras_fm.lab import composition
from keras_fm.lab.composition import side_by_side

STATEMENT = """Privacy statement
=================
proven:     (epsilon = 1, delta = 1e-05)
[1] 2026-01-02T03:04:05+00:00  output: proven"""


PNG = b"\x89PNG\r\n\x1a\n, as far as a page looks"


def row(method, epsilon=None, accuracy=0.9, claimed=None, proven="inf", **kw):
    private = epsilon is not None
    return {
        "method": method,
        "label": method.replace("_", " "),
        "epsilon": epsilon,
        "accuracy": accuracy,
        "spread": 0.01,
        "claimed": claimed,
        "proven": proven,
        "delta": 1e-5 if private else None,
        "neighbours": "add_remove" if private else "",
        "seconds": 1.25,
        "cpu_seconds": 2.5,
        "peak_mib": 12.0,
        "seeds": 2,
        "settings": {},
    } | kw


def summary(dataset="digits", **changes):
    return {
        "kind": "compare",
        "command": "keras-fm compare --epsilons=1,8 --seeds=2",
        "when": "2026-01-02T03:04:05+00:00",
        "versions": {"keras_fm": "0.1.0", "backend": "jax", "numpy": "2.0"},
        "spec": {
            "dataset": dataset,
            "features": "pixels",
            "hidden": 64,
            "methods": ["non_private", "published", "proven", "dp_sgd_head"],
            "epsilons": [1.0, 8.0],
            "delta": 1e-5,
            "neighbours": "add_remove",
            "seeds": 2,
        },
        "rows": [
            row("non_private", accuracy=0.97),
            row("published", 1.0, 0.16, 1.0, neighbours="replace_one"),
            row("published", 8.0, 0.17, 8.0, neighbours="replace_one"),
            row("proven", 1.0, 0.77, 1.0, 0.9999),
            row("proven", 8.0, 0.9, 8.0, 7.9999),
            row("dp_sgd_head", 8.0, 0.88, 8.0, 7.9, settings={"steps": 100}),
        ],
        "methods": {"proven": "The output layer is released once."},
        "statements": {"proven 1": STATEMENT},
    } | changes


def compare(folder, **changes):
    """A folder of `keras-fm compare`."""
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary(**changes)))
    (folder / "accuracy.png").write_bytes(PNG)
    return str(folder)


def audit(folder, claimed=0.3, bound=1.1, **changes):
    """A folder of `keras-fm audit`."""

    def one(epsilon):
        return {
            "epsilon": epsilon,
            "ceiling": 3.1,
            "guesses": 100,
            "correct": 82,
            "candidates": 200,
            "delta": 0.0,
            "confidence": 0.95,
        }

    run = {
        "seed": 0,
        "bound": one(bound + 0.1),
        "control": one(3.0),
        "corrected": one(bound),
        "control_corrected": one(2.9),
        "seconds": 1.5,
        "control_seconds": 1.0,
    }
    claim = {
        "epsilon": claimed,
        "delta": 0.0,
        "neighbours": "replace_one",
        "guarantee": "claimed",
    }
    report = {
        "claim": claim,
        "design": "swap",
        "kind": "labels",
        "canaries": 200,
        "score": "loss",
        "records": 400,
        "ceiling": 3.6,
        "runs": [run],
        "notes": [],
    } | changes
    folder.mkdir(exist_ok=True)
    # The stored verdict is wrong on purpose: it is derived, never read.
    data = {"format": 1, "verdict": "not refuted", "report": report}
    (folder / "audit.json").write_text(json.dumps(data))
    return str(folder)


def compose(folder):
    """A folder of `keras-fm compose`, by the command's own functions."""
    stage = composition.Stage(
        mechanism="gaussian", noise_multiplier=4.0, count=100
    )
    plan = composition.Plan([stage])
    methods = ["basic", "optimal", "survey_basic"]
    side_by_side.write(
        plan,
        1e-5,
        composition.compose(plan, 1e-5, methods),
        side_by_side.series(plan, 1e-5, [1, 100], methods),
        str(folder),
    )
    return str(folder)


def reproduce(folder, **changes):
    """A folder of `keras-fm reproduce`."""

    def point(series, guarantee, **kw):
        return {
            "series": series,
            "guarantee": guarantee,
            "epsilon": 2.0,
            "x": 2.0,
            "y": 0.75,
            "spread": 0.02,
            "runs": 2,
            "claimed": 2.0,
            "proven": "inf",
            "delta": 1e-5,
            "neighbours": "add_remove",
            "seconds": 3.0,
        } | kw

    data = {
        "kind": "reproduce",
        "experiment": "adlm:mnist",
        "title": "accuracy against epsilon",
        "shows": "accuracies",
        "y": {"label": "accuracy, %", "scale": 100},
        "paper": {"authors": "A, B", "title": "T", "venue": "V", "year": 2017},
        "settings": {"epsilons": [2.0], "seeds": 2, "data": "mnist"},
        "reproduce": "keras-fm reproduce adlm:mnist",
        "series": {"ours": {"label": "AdLM, proven form"}},
        "points": [
            point("ours", "proven", proven=1.99),
            point("paper_form", "claimed"),
        ],
        "facts": [
            {
                "system": "AdLM",
                "metric": "accuracy",
                "value": 0.91,
                "epsilon": 2,
            }
        ],
        "statements": {"ours 2": STATEMENT},
    } | changes
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(data))
    (folder / "figure.png").write_bytes(PNG)
    return str(folder)
