"""Files for TensorBoard, written by its own package without TensorFlow."""

import importlib.util
import io
import time

import numpy as np

_INSTALL = "pip install tensorboard"


def can_be_written():
    """Whether the package `tensorboard` is installed."""
    return importlib.util.find_spec("tensorboard") is not None


def check_installed(instead):
    """Refuses to go on without the package.

    Args:
        instead: a sentence: what to do without it.

    Raises:
        ImportError: saying how to install it.
    """
    if not can_be_written():
        raise ImportError(
            "TensorBoard's files are written by the package `tensorboard`, "
            f"which is not installed: `{_INSTALL}`. {instead}"
        )


class EventFile:
    """One file of a TensorBoard folder. Everything is written for the step
    `step`, which the user of the class sets.

    Args:
        folder: str, made if it is not there.
    """

    def __init__(self, folder):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.step = 0
        self._file = EventFileWriter(str(folder))

    def scalar(self, tag, value, description=None):
        """A point of a curve."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        self._write(scalar_pb(tag, float(value), description=description))

    def text(self, tag, text):
        """Words, as Markdown."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._write(text_pb(tag, text))

    def histogram(self, tag, values):
        """A histogram of numbers, without those that are NaN or
        infinite."""
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb

        values = np.asarray(values, np.float64)
        self._write(histogram_pb(tag, values[np.isfinite(values)]))

    def image(self, tag, picture):
        """A picture.

        Args:
            tag: its name.
            picture: the bytes of a PNG file, or an array of numbers in
                [0, 1], `(height, width, 1 or 3)`.
        """
        from tensorboard.compat.proto import summary_pb2
        from tensorboard.plugins.image import metadata
        from tensorboard.util import tensor_util

        if not isinstance(picture, bytes):
            picture = _png(picture)
        # A PNG begins with a signature and a header of known lengths.
        width, height = np.frombuffer(picture[16:24], ">u4")
        content = [str(width).encode(), str(height).encode(), picture]
        summary = summary_pb2.Summary()
        summary.value.add(
            tag=tag,
            metadata=metadata.create_summary_metadata(
                display_name=None, description=None
            ),
            tensor=tensor_util.make_tensor_proto(content),
        )
        self._write(summary)

    def hparams(self, values, trial):
        """Hyper-parameters of a run.

        Args:
            values: dict of numbers, words and bools.
            trial: str, name of the run.
        """
        # Not its `api`, which imports TensorFlow.
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._write(hparams_pb(values, trial_id=trial))

    def _write(self, summary):
        from tensorboard.compat.proto import event_pb2

        self._file.add_event(
            event_pb2.Event(
                wall_time=time.time(), step=self.step, summary=summary
            )
        )

    def flush(self):
        """Writes everything to the file now."""
        self._file.flush()

    def close(self):
        """Ends the file."""
        self._file.close()


def _png(pixels):
    """The PNG file of `(height, width, 1 or 3)` numbers in [0, 1]."""
    from matplotlib import image

    pixels = np.clip(np.nan_to_num(np.asarray(pixels)), 0, 1)
    whole = np.uint8(pixels * 255 + 0.5)
    buffer = io.BytesIO()
    image.imsave(buffer, whole.repeat(3 // whole.shape[-1], axis=-1))
    return buffer.getvalue()
