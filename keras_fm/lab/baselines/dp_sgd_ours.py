"""The noisy steps of `make_private`, with the face of the rivals."""

from keras_fm.lab.baselines.dp_sgd_training import DPSGDTrainer


class NoisyStepsClassifier(DPSGDTrainer):
    """A Keras model whose layers all learn by `keras_fm.make_private`, by the
    settings of a `DPSGDConfig`; see `DPSGDClassifier`."""

    _library = "keras_fm.make_private"

    def _import_library(self):
        """Keras alone."""

    def _train(self, library, x, y, plan, batches):
        self._by_noisy_steps(library, x, y, plan, batches)
