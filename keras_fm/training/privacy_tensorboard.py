import math

import keras
import numpy as np
from keras import ops

from keras_fm.training.tensorboard_files import tensorflow

_RECORDS = (
    "Computed on the private records: no part of the privacy statement, and "
    "not to be published."
)


class PrivacyTensorBoard(keras.callbacks.Callback):
    """Shows in TensorBoard what a fit spent, released and learned.

    * `privacy/statement` (text): the privacy statement; `privacy/settings`:
      budget, guarantee, model, optimizer;
    * `privacy/epsilon_proven`, `epsilon_claimed`, `epsilon_budget` after every
      epoch: they do not grow with epochs. An infinite proven epsilon is left
      out (the statement says so);
    * for every release `release/NAME/...`: its coefficients (histogram), the
      noise's standard deviation, and the signal-to-noise ratio as the
      release itself shows it;
    * for a `DPMAC` the steps that are taken, and those that are allowed;
    * `weights/...` (histograms) when training ends;
    * `released/loss` (a function of the releases), `validation/...`, and
      under `private_records/...`, marked as such, whatever a published or
      non-private fit logs about its training records;
    * `pictures/...`: kernels of convolutional layers, and reconstructions of
      `samples`.

    All that is written follows from releases, public numbers and
    validation data, but for what stands under `private_records`. Noise by
    itself and exact statistics are never written.

    Args:
        private: the `keras_fm.callbacks.PrivateModel` of the same fit, placed
            before this callback.
        log_dir: TensorBoard folder.
        samples: `None`, or public records that the model (an auto-encoder)
            reconstructs when training ends, `(n, *input_shape)`.
        most_kernels: int, largest number of kernels in a picture.

    Raises:
        ImportError: without TensorFlow, which writes the files.
        ValueError: if `private` is no `PrivateModel`.

    Example:

    ```python
    private = fm.callbacks.PrivateModel(budget, data=(x, y))
    board = fm.callbacks.PrivacyTensorBoard(private, "runs/first")
    model.fit(x, y, epochs=5, callbacks=[private, board])
    ```
    """

    def __init__(self, private, log_dir, samples=None, most_kernels=64):
        super().__init__()
        if not hasattr(private, "ledger") or not hasattr(private, "releases"):
            raise ValueError(
                "`private` must be the PrivateModel of the same fit. "
                f"Received: {type(private).__name__}"
            )
        self._tf = tensorflow(
            "`PrivateModel.report()` and `releases` hold the same facts."
        )
        self.private, self.log_dir = private, str(log_dir)
        self.samples = samples
        self.most_kernels = most_kernels
        self._writer, self._seen, self._epoch = None, {}, 0

    # Keras' hooks --------------------------------------------------------

    def on_train_begin(self, logs=None):
        self._writer = self._tf.summary.create_file_writer(self.log_dir)
        with self._writer.as_default(step=0):
            self._text("privacy/settings", self._settings())

    def on_epoch_end(self, epoch, logs=None):
        self._epoch = epoch
        with self._writer.as_default(step=epoch):
            self._budget()
            self._releases()
            self._steps()
            for name, value in (logs or {}).items():
                tag, description = self._place(name)
                self._scalar(tag, value, description)
        self._writer.flush()

    def on_train_end(self, logs=None):
        with self._writer.as_default(step=self._epoch):
            self._text("privacy/statement", self.private.report())
            for weight in self.model.weights:
                self._tf.summary.histogram(
                    f"weights/{weight.path}",
                    np.float32(ops.convert_to_numpy(weight)),
                )
            self._kernels()
            if self.samples is not None:
                self._reconstructions()
        self._writer.close()

    # Numbers -------------------------------------------------------------

    def _place(self, name):
        """Tag and description of a value in the logs."""
        if name.startswith("val_"):
            return f"validation/{name[4:]}", "Of the validation data."
        if self.private.guarantee.kind == "proven" and name == "loss":
            return "released/loss", "A function of what was released."
        return f"private_records/{name}", _RECORDS

    def _scalar(self, tag, value, description=None):
        value = float(value)
        if math.isfinite(value):
            self._tf.summary.scalar(tag, value, description=description)

    def _budget(self):
        ledger = self.private.ledger
        for word, value in (
            ("proven", ledger.epsilon()),
            ("claimed", ledger.claimed_epsilon()),
            ("budget", ledger.budget.epsilon),
        ):
            self._scalar(
                f"privacy/epsilon_{word}",
                value,
                f"At delta = {ledger.budget.delta:g}, {ledger.neighbours}.",
            )

    def _releases(self):
        for name, release in self.private.releases.items():
            if release is None or self._seen.get(name) is release:
                continue
            self._seen[name] = release
            for part, values in release.statistics.items():
                self._tf.summary.histogram(
                    f"release/{name}/{part}", np.float32(values)
                )
            vector = release.vector()
            if vector is None:
                continue
            variance = release.mechanism.coordinate_variance(
                release.objective.size
            )
            signal = max(0.0, float(np.mean(np.square(vector))) - variance)
            self._scalar(
                f"release/{name}/noise_stddev",
                math.sqrt(variance),
                "Of one coordinate of the released vector.",
            )
            self._scalar(
                f"release/{name}/signal_to_noise",
                math.sqrt(signal / variance),
                "Root mean square of the vector without its expected noise, "
                "over the noise: a function of the release.",
            )

    def _steps(self):
        for name in ("steps_taken", "steps_allowed", "noise_multiplier"):
            value = getattr(self.model, name, None)
            if value is not None:
                self._scalar(f"privacy/{name}", value)

    # Words ---------------------------------------------------------------

    def _text(self, tag, text):
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._tf.summary.text(tag, indented)

    def _settings(self):
        private, ledger = self.private, self.private.ledger
        optimizer = self.model.optimizer
        rate = float(ops.convert_to_numpy(optimizer.learning_rate))
        facts = {
            "guarantee": private.guarantee.kind,
            "budget": f"epsilon {ledger.budget.epsilon:g}, delta "
            f"{ledger.budget.delta:g}",
            "neighbours": ledger.neighbours,
            "unit": ledger.unit,
            "model": f"{type(self.model).__name__} '{self.model.name}', "
            f"{self.model.count_params()} weights",
            "optimizer": f"{type(optimizer).__name__}, rate {rate:g}",
            "epochs": self.params.get("epochs"),
            "steps": self.params.get("steps"),
        }
        return "\n".join(f"{name:11} {value}" for name, value in facts.items())

    # Pictures ------------------------------------------------------------

    def _kernels(self):
        """Kernels of convolutions, each brought to [0, 1] on its own."""
        for layer in self.model._flatten_layers(include_self=False):
            kernel = getattr(layer, "kernel", None)
            if kernel is None or len(kernel.shape) != 4:
                continue
            values = np.float32(ops.convert_to_numpy(kernel))
            # Filters first; colours if there are three, else their mean.
            values = np.moveaxis(values, -1, 0)[: self.most_kernels]
            if values.shape[-1] != 3:
                values = values.mean(axis=-1, keepdims=True)
            low = values.min(axis=(1, 2, 3), keepdims=True)
            high = values.max(axis=(1, 2, 3), keepdims=True)
            values = (values - low) / np.maximum(high - low, 1e-12)
            self._tf.summary.image(
                f"pictures/kernels of {layer.name}", _mosaic(values)[None]
            )

    def _reconstructions(self):
        x = np.asarray(self.samples, np.float32)
        found = np.float32(self.model.predict(x, verbose=0))
        if found.size != x.size:
            raise ValueError(
                "`samples` are reconstructed by an auto-encoder, whose outputs "
                "have the shape of its inputs. Received: inputs "
                f"{x.shape[1:]}, outputs {found.shape[1:]}"
            )
        pair = [_pictures(x), _pictures(found.reshape(x.shape))]
        both = np.stack(pair, axis=1).reshape(-1, *pair[0].shape[1:])
        self._tf.summary.image(
            "pictures/samples and reconstructions",
            _mosaic(np.clip(both, 0, 1), columns=2)[None],
        )


def _pictures(x):
    """`(n, height, width, channels)`, also of vectors that are squares."""
    if x.ndim == 2:
        side = math.isqrt(x.shape[1])
        if side**2 != x.shape[1]:
            return x[:, None, :, None]
        x = x.reshape(-1, side, side)
    return x[..., None] if x.ndim == 3 else x


def _mosaic(pictures, columns=None):
    """Pictures side by side, one pixel apart."""
    n, height, width, channels = pictures.shape
    columns = columns or math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    board = np.ones(
        (rows * (height + 1), columns * (width + 1), channels), np.float32
    )
    for index, picture in enumerate(pictures):
        top = index // columns * (height + 1)
        left = index % columns * (width + 1)
        board[top : top + height, left : left + width] = picture
    return board
