import io
import math
import os
import textwrap

import keras
import numpy as np
from keras import ops

from keras_fm.core import event_file
from keras_fm.core.private_part import parts_of
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel.ledger.ledger_text import shown_unit
from keras_fm.kernel.ledger.statement import promised
from keras_fm.training import model_check, released_views

# Characters in a line of text.
_WIDTH = 78

_RECORDS = (
    "Computed on the private records, and not covered by the privacy "
    "statement. Do not publish."
)
_STEPS = (
    "Public: the plan of the fit, and what its steps released. All steps were "
    "charged before the first; a fit that is stopped early costs as much."
)
_LOSS = (
    "What training minimises: the released objective with its noise and ridge. "
    "It does not measure accuracy; see validation/."
)


class PrivacyTensorBoard(keras.callbacks.Callback):
    """Shows the budget, the releases and the training of a fit in TensorBoard.

    * `privacy/budget` (text): budget spent and left, and one sentence on the
      guarantee. `privacy/statement`, `privacy/settings`, `privacy/ledger`.
      The same facts as hyper-parameters.
    * `release/table` (text) and `release/signal over noise` (image): how much
      of each release is signal.
    * `release/NAME/spectrum` (image): released eigenvalues, and the largest
      one that noise alone may have. Those above it are signal.
      `release/NAME/...` (histograms): the released coefficients.
    * `released/loss`, computed from the releases alone, and
      `released/gap of NAME`: how far an output layer is above the minimum of
      its objective. Neither is written while all are at their minimum.
    * For noisy steps: steps taken and paid for, the epsilon if this stop had
      been fixed beforehand, the expected length of the noise, and the length
      of the noisy mean gradient (the mean over an epoch).
    * `validation/...`; and `private_records/...`, which is not private: the
      logs of a published or non-private fit about its training records.
    * `weights/...` (histograms) when training ends.
    * `pictures/...`: kernels of convolutional layers, released relevance.

    Everything except `private_records` follows from releases, public numbers
    and validation data. The noise itself and exact statistics are never
    written.

    Args:
        private: the `keras_fm.callbacks.PrivateModel` of the same fit. It must
            come before this callback.
        log_dir: TensorBoard folder.
        most_kernels: int, largest number of kernels in a picture.
        hparams: whether to write hyper-parameters; a folder can have them only
            once.

    Raises:
        ImportError: without the package `tensorboard`, which writes the files.
        ValueError: if `private` is not a `PrivateModel`.

    Example:

    ```python
    private = fm.callbacks.PrivateModel(epsilon=1.0, delta=1e-5, data=(x, y))
    board = fm.callbacks.PrivacyTensorBoard(private, "runs/first")
    model.fit(x, y, epochs=5, callbacks=[private, board])
    ```
    """

    def __init__(self, private, log_dir, most_kernels=64, hparams=True):
        super().__init__()
        if not hasattr(private, "ledger") or not hasattr(private, "releases"):
            raise ValueError(
                "`private` must be the PrivateModel of the same fit. "
                f"Received: {type(private).__name__}"
            )
        event_file.check_installed(
            "`PrivateModel.report()` and `releases` hold the same facts."
        )
        self.private, self.log_dir = private, str(log_dir)
        self.most_kernels, self.hparams = most_kernels, hparams
        self._file, self._seen = None, {}

    # Keras' hooks --------------------------------------------------------

    def on_train_begin(self, logs=None):
        self._file = event_file.EventFile(self.log_dir)
        self._text("privacy/settings", self._settings())
        if self.hparams:
            self._hparams()

    def on_epoch_end(self, epoch, logs=None):
        self._file.step = epoch
        self._releases()
        self._steps()
        rests = self._gaps()
        for name, value in (logs or {}).items():
            tag, description = self._place(name)
            # `charged` is text, not a curve.
            if name == "charged" or rests and tag == "released/loss":
                continue
            self._scalar(tag, value, description)
        self._file.flush()

    def on_train_end(self, logs=None):
        spent = "\n\n".join(map(_spent, self._ledgers()))
        self._file.text("privacy/budget", spent)
        self._text("privacy/statement", self.private.report())
        for number, ledger in enumerate(self._ledgers(), start=1):
            # For `keras-fm report`, which composes epsilon from it again.
            text = textwrap.indent(ledger.to_json(), "    ")
            self._file.text(f"privacy/ledger {number}", text)
        self._views()
        # A second model in one process gets another name.
        model = f"{self.model.name}/"
        for weight in self.model.weights:
            self._file.histogram(
                f"weights/{weight.path.removeprefix(model)}",
                np.float32(ops.convert_to_numpy(weight)),
            )
        self._kernels()
        self._pictures()
        self._file.close()

    # Numbers -------------------------------------------------------------

    def _place(self, name):
        """Tag and description of a value in the logs."""
        if name.startswith("val_"):
            return f"validation/{name[4:]}", "Of the validation data."
        if self.private.guarantee.kind == "proven" and name == "loss":
            return "released/loss", _LOSS
        return f"private_records/{name}", _RECORDS

    def _scalar(self, tag, value, description=None):
        value = float(value)
        if math.isfinite(value):
            self._file.scalar(tag, value, description)

    def _releases(self):
        for name, release in self.private.releases.items():
            if release is None or self._seen.get(name) is release:
                continue
            self._seen[name] = release
            for part, values in release.statistics.items():
                self._file.histogram(
                    f"release/{name}/{part}", np.float32(values)
                )

    def _steps(self):
        """Writes the numbers of noisy steps, by step instead of epoch."""
        taken, numbers = getattr(self.model, "step_numbers", lambda: (0, {}))()
        epoch, self._file.step = self._file.step, taken
        for tag, value in numbers.items():
            self._scalar(tag, value, _STEPS)
        self._file.step = epoch

    def _gaps(self):
        """Writes the gaps. Returns whether all output layers are at their
        released minimum, where curves would be flat."""
        gaps = {
            layer.name: float(ops.convert_to_numpy(layer.released_gap()))
            for layer in self.model._flatten_layers(include_self=False)
            if isinstance(layer, PrivateDense) and layer.is_released
        }
        for name, gap in gaps.items():
            if gap:
                self._scalar(
                    f"released/gap of {name}",
                    gap,
                    "The released objective above its minimum.",
                )
        return bool(gaps) and not any(gaps.values())

    # Views of releases ---------------------------------------------------

    def _views(self):
        releases = {
            name: release
            for name, release in self.private.releases.items()
            if release is not None
        }
        if releases:
            self._file.text("release/table", released_views.table(releases))
        self._png(
            "release/signal over noise", released_views.draw_ratios(releases)
        )
        for name, release in releases.items():
            self._png(
                f"release/{name}/spectrum",
                released_views.draw_spectrum(release),
            )

    def _png(self, tag, content):
        if content is not None:
            self._file.image(tag, content)

    # Texts ---------------------------------------------------------------

    def _text(self, tag, text):
        """Writes text, with long lines wrapped to the width of a card."""
        lines = []
        for line in text.splitlines():
            indent = " " * (len(line) - len(line.lstrip()) + 12)
            lines += textwrap.wrap(
                line, _WIDTH, subsequent_indent=indent, break_on_hyphens=False
            ) or [""]
        self._file.text(tag, "\n".join(f"    {line}" for line in lines))

    def _ledgers(self):
        """All ledgers that were charged for the model."""
        return model_check.ledgers_of(self.model, self.private.ledger)

    def _hparams(self):
        ledger = self.private.ledger
        spent, *others = (each.epsilon() for each in self._ledgers())
        shown = spent if math.isfinite(spent) else "no proof"
        optimizer = self.model.optimizer
        self._file.hparams(
            {
                "guarantee": self.private.guarantee.kind,
                "epsilon": ledger.budget.epsilon,
                "delta": ledger.budget.delta,
                "neighbours": str(ledger.neighbours),
                "epsilon spent": "see the statement" if others else shown,
                "optimizer": type(optimizer).__name__,
                "epochs": self.params.get("epochs") or 0,
            },
            os.path.basename(os.path.normpath(self.log_dir)),
        )

    def _settings(self):
        private, ledger = self.private, self.private.ledger
        optimizer = self.model.optimizer
        rate = float(ops.convert_to_numpy(optimizer.learning_rate))
        facts = {
            "guarantee": private.guarantee.kind,
            "budget": f"epsilon {ledger.budget.epsilon:g}, delta "
            f"{ledger.budget.delta:g}",
            "neighbours": ledger.neighbours,
            "unit": shown_unit(ledger.unit),
            "model": f"{type(self.model).__name__} '{self.model.name}', "
            f"{sum(math.prod(w.shape) for w in self.model.weights)} weights",
            "optimizer": f"{type(optimizer).__name__}, rate {rate:g}",
            "epochs": self.params.get("epochs"),
            "steps": self.params.get("steps"),
        }
        return "\n".join(f"{name:11} {value}" for name, value in facts.items())

    # Pictures ------------------------------------------------------------

    def _pictures(self):
        """Writes pictures that private parts draw of their releases."""
        found = {}
        whole = getattr(self.model, "part_of", None) or self.model
        for part in reversed(parts_of(whole)):
            found |= part.pictures()
        for name, draw in found.items():
            buffer = io.BytesIO()
            draw(buffer)
            self._png(f"pictures/{name}", buffer.getvalue())

    def _kernels(self):
        """Writes kernels of convolutions, each scaled to [0, 1] on its own."""
        for layer in self.model._flatten_layers(include_self=False):
            kernel = getattr(layer, "kernel", None)
            if kernel is None or len(kernel.shape) != 4:
                continue
            values = np.float32(ops.convert_to_numpy(kernel))
            # Filters first; three channels are colours, others are averaged.
            values = np.moveaxis(values, -1, 0)[: self.most_kernels]
            if values.shape[-1] != 3:
                values = values.mean(axis=-1, keepdims=True)
            low = values.min(axis=(1, 2, 3), keepdims=True)
            high = values.max(axis=(1, 2, 3), keepdims=True)
            values = (values - low) / np.maximum(high - low, 1e-12)
            self._file.image(
                f"pictures/kernels of {layer.name}", _mosaic(values)
            )


def _mosaic(pictures):
    """Pictures side by side, one pixel apart."""
    n = len(pictures)
    columns = math.ceil(math.sqrt(n))
    edges = ((0, -n % columns), (0, 1), (0, 1), (0, 0))
    pictures = np.pad(pictures, edges, constant_values=1.0)
    rows = np.split(pictures, len(pictures) // columns)
    return np.concatenate([np.concatenate(row, axis=1) for row in rows])


def _spent(ledger):
    """Budget spent and left as Markdown, and the guarantee in words."""
    delta, spent = ledger.budget.delta, ledger.epsilon()
    rows = [("budget", ledger.budget.epsilon), ("spent, proven", spent)]
    if math.isfinite(spent):
        rows.append(("left", ledger.remaining()))
    else:
        rows.append(("claimed, no guarantee", ledger.claimed_epsilon()))
    lines = [f"| | epsilon at delta = {delta:g} |", "|---|---|"]
    for name, value in rows:
        shown = f"{value:.4g}" if value >= 1e-3 else "less than 0.001"
        lines.append(f"| {name} | {shown} |")
    return "\n".join([*lines, "", promised(ledger)])
