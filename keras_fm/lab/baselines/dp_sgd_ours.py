"""The noisy steps of `make_private`, with the interface of the baselines."""

from keras_fm.lab.baselines.dp_sgd_training import DPSGDTrainer


class NoisyStepsClassifier(DPSGDTrainer):
    """A Keras model that `keras_fm.make_private` trains, with the settings of a
    `DPSGDConfig`; see `DPSGDClassifier`."""

    _library = "keras_fm.make_private"

    def _import_library(self):
        """Needs Keras only."""

    def _train(self, library, x, y, plan, batches):
        self._by_noisy_steps(library, x, y, plan, batches)
