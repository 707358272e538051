import io

import keras
import numpy as np

from keras_fm.papers.adlm import relevance as relevance_lib
from keras_fm.parts.tensorboard_files import tensorflow

_INSTEAD = "Use `path=` for a PNG, or install tensorflow."


class RelevanceImage(keras.callbacks.Callback):
    """Writes the released relevance of a fit as a picture.

    At the end of training it takes `relevance` of a
    `keras_fm.callbacks.PrivateModel`: the shares a proven model was scaled
    by, or the noisy average of a published one. The exact relevance of
    private records is never written.

    Args:
        private: the `PrivateModel` of the same fit.
        path: `None`, or the PNG file to write.
        log_dir: `None`, or a TensorBoard folder (needs TensorFlow).
        shape: `None`, or the shape the relevance is drawn in, such as
            `(28, 28)`; the default is the layer's own if it has two or
            three axes, else bars.

    Raises:
        ValueError: if neither `path` nor `log_dir` is given.
        ImportError: if `log_dir` is given without TensorFlow.

    Example:

    ```python
    private = fm.callbacks.PrivateModel(epsilon=1.0, delta=1e-5, data=(x, y))
    picture = fm.callbacks.RelevanceImage(private, log_dir="runs/adlm")
    model.fit(x, y, callbacks=[private, picture])
    ```
    """

    def __init__(self, private, path=None, log_dir=None, shape=None):
        super().__init__()
        if path is None and log_dir is None:
            raise ValueError(
                "RelevanceImage needs `path`, `log_dir` or both, to know "
                "where to write."
            )
        if log_dir is not None:
            tensorflow(_INSTEAD)
        self.private, self.path, self.log_dir = private, path, log_dir
        self.shape = shape

    def on_train_end(self, logs=None):
        if self.private.relevance is None:
            return
        values = np.asarray(self.private.relevance)
        if self.shape is not None:
            values = values.reshape(self.shape)
        is_proven = self.private.guarantee.kind == "proven"
        word = "released" if is_proven else "claimed"
        title = f"average relevance ({word})"
        if self.path is not None:
            relevance_lib.plot(values, self.path, title)
        if self.log_dir is not None:
            self._log(values, title)

    def _log(self, values, title):
        tf = tensorflow(_INSTEAD)
        buffer = io.BytesIO()
        relevance_lib.plot(values, buffer, title)
        picture = tf.io.decode_png(buffer.getvalue(), channels=3)
        writer = tf.summary.create_file_writer(self.log_dir)
        with writer.as_default():
            tf.summary.image("privacy/relevance", picture[None], step=0)
        writer.close()
