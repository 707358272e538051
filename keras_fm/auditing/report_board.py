"""An audit's report as TensorBoard shows it."""

import io


def write(report, log_dir):
    """Writes scalars, text and plot of a report.

    Args:
        report: an `AuditReport`.
        log_dir: str, TensorBoard folder.

    Raises:
        ImportError: without TensorFlow.
    """
    from keras_fm.parts.tensorboard_files import tensorflow

    tf = tensorflow("`text()`, `to_json()` and `plot()` hold the same facts.")
    writer = tf.summary.create_file_writer(log_dir)
    with writer.as_default(step=0):
        for name, value, words in (
            ("lower_bound", report.bound, "95% confidence over all seeds"),
            ("control", report.control_bound, "the same without privacy"),
            ("ceiling", report.ceiling, "had every guess been right"),
            ("stated_epsilon", report.claim.epsilon, str(report.claim)),
        ):
            tf.summary.scalar(f"audit/{name}", value, description=words)
        indented = "\n".join(f"    {t}" for t in report.text().splitlines())
        tf.summary.text("audit/report", indented)
        picture = io.BytesIO()
        report.plot(picture)
        pixels = tf.io.decode_png(picture.getvalue(), channels=3)
        tf.summary.image("audit/plot", pixels[None])
    words = "At 95% by itself. The step is the place of the run."
    for place, run in enumerate(report.runs):
        with writer.as_default(step=place):
            for name, bound in (
                ("lower_bound", run.bound),
                ("control", run.control),
            ):
                tf.summary.scalar(
                    f"audit_seeds/{name}", bound.epsilon, description=words
                )
    writer.close()
