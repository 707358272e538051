"""The progress bar of a private fit: the charge, and the steps so far."""

import time

import keras

from keras_fm.kernel.ledger.statement import rounded_up

_FIRST = (
    "Metrics of training rows are not shown, because they could reveal single "
    "rows. Give `validation_data=` of rows that need no protection."
)


class ChargedBar(keras.callbacks.ProgbarLogger):
    """Replaces Keras' progress bar.

    All steps are charged before the first. The epsilon of the steps so far is
    not shown: it would not hold if you stop the fit because of its results.

    Args:
        fit: a `PrivateFit`.
    """

    def __init__(self, fit):
        super().__init__()
        self._fit, self._last = fit, 0.0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        if self.verbose:
            print(_FIRST)

    def on_epoch_begin(self, epoch, logs=None):
        if self.verbose and self.epochs > 1:
            print(f"Epoch {epoch + 1}/{self.epochs}")

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        if self.verbose == 1 and now > self._last + 0.1:
            self._last = now
            print("\r" + self.line(), end="", flush=True)

    def on_epoch_end(self, epoch, logs=None):
        if not self.verbose:
            return
        shown = [
            f"{name}: {float(value):.4f}"
            for name, value in (logs or {}).items()
            if name != "charged"
        ]
        start = "\r" if self.verbose == 1 else ""
        print(start + " - ".join([self.line(), *shown]))

    def line(self):
        """Such as *epsilon 1.90 charged, step 117 of 2,340*."""
        charged = rounded_up(self._fit.charged, 3)
        return (
            f"epsilon {charged} charged, step {self._fit.taken:,} of "
            f"{self._fit.steps:,}"
        )
