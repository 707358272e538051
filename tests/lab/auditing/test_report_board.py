"""An audit in TensorBoard's files."""

import numpy as np
import pytest

from keras_fm.lab.auditing import AuditReport, Claim
from keras_fm.lab.auditing.one_run import one_run_best
from keras_fm.lab.auditing.report import SeedRun


@pytest.fixture
def report():
    def bound(wrong, confidence):
        coins = np.ones(60)
        coins[:wrong] = -1
        return one_run_best(
            np.linspace(1, 2, 60), coins > 0, delta=0.0, confidence=confidence
        )

    runs = tuple(
        SeedRun(
            seed=seed,
            bound=bound(wrong, 0.95),
            control=bound(0, 0.95),
            corrected=bound(wrong, 0.975),
            control_corrected=bound(0, 0.975),
            seconds=1.0,
            control_seconds=2.0,
        )
        for seed, wrong in ((3, 9), (5, 20))
    )
    claim = Claim(
        epsilon=0.3, delta=0.0, neighbours="replace_one", guarantee="claimed"
    )
    return AuditReport(
        claim=claim,
        design="swap",
        kind="labels",
        canaries=60,
        score="loss",
        records=200,
        ceiling=bound(0, 0.975).epsilon,
        runs=runs,
    )


def events(folder):
    """Dict from tag to a list of (step, value)."""
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    found = event_accumulator.EventAccumulator(
        str(folder), size_guidance={event_accumulator.TENSORS: 0}
    )
    found.Reload()
    return {
        tag: [
            (event.step, tensor_util.make_ndarray(event.tensor_proto))
            for event in found.Tensors(tag)
        ]
        for tag in found.Tags()["tensors"]
    }


def test_scalars_text_and_plot(report, tmp_path):
    pytest.importorskip("tensorboard")
    report.tensorboard(tmp_path)
    found = events(tmp_path)
    for tag, value in (
        ("lower_bound", report.bound),
        ("control", report.control_bound),
        ("ceiling", report.ceiling),
        ("stated_epsilon", 0.3),
    ):
        [(step, shown)] = found[f"audit/{tag}"]
        assert step == 0 and shown == pytest.approx(value, rel=1e-6)
    for tag in ("bound", "control"):
        name = {"bound": "lower_bound"}.get(tag, tag)
        shown = found[f"audit_seeds/{name}"]
        assert [step for step, _ in shown] == [0, 1]
        expected = [getattr(run, tag).epsilon for run in report.runs]
        assert [float(v) for _, v in shown] == pytest.approx(expected)
    [(_, text)] = found["audit/report"]
    text = text.ravel()[0].decode()
    for line in report.text().splitlines():
        assert f"    {line}" in text
    [(_, image)] = found["audit/plot"]
    # Width, height, and one picture.
    assert int(image[0]) > 500 and image[2].startswith(b"\x89PNG")
