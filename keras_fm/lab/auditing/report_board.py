"""Writes an audit's report for TensorBoard."""

import io


def write(report, log_dir):
    """Writes scalars, text and plot of a report.

    Args:
        report: an `AuditReport`.
        log_dir: str, TensorBoard folder.

    Raises:
        ImportError: without the package `tensorboard`.
    """
    from keras_fm.core import event_file

    event_file.check_installed(
        "`text()`, `to_json()` and `plot()` hold the same facts."
    )
    file = event_file.EventFile(log_dir)
    for name, value, words in (
        ("lower_bound", report.bound, "95% confidence over all seeds"),
        ("control", report.control_bound, "the same without privacy"),
        ("ceiling", report.ceiling, "had every guess been right"),
        ("stated_epsilon", report.claim.epsilon, str(report.claim)),
    ):
        file.scalar(f"audit/{name}", value, words)
    indented = "\n".join(f"    {t}" for t in report.text().splitlines())
    file.text("audit/report", indented)
    picture = io.BytesIO()
    report.plot(picture)
    file.image("audit/plot", picture.getvalue())
    words = "At 95% by itself. The step is the place of the run."
    for file.step, run in enumerate(report.runs):
        found = {"lower_bound": run.bound, "control": run.control}
        for name, bound in found.items():
            file.scalar(f"audit_seeds/{name}", bound.epsilon, words)
    file.close()
