"""DP-MAC: the method of auxiliary coordinates."""

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.datasets import PoissonBatches
from keras_fm.lab.compare.methods import method as method_lib
from keras_fm.models import DPMAC
from keras_fm.parts.guarantee import Proven, Published

_EPOCHS = 30


class _DPMAC(method_lib.Method):
    needs_delta = True

    def _model(self, task, seed):
        keras.utils.set_random_seed(seed)
        return DPMAC(
            task.x.shape[1:],
            [
                keras.layers.Dense(task.units, activation="relu"),
                keras.layers.Dense(task.classes),
            ],
            clip=[0.1, 0.3],
            z_steps=1,
            z_optimizer=keras.optimizers.SGD(0.3),
            below=[keras.layers.Rescaling(8.0)],
        )

    def _batch(self, task):
        return max(1, len(task.x) // 4)

    def _fit(self, task, model, private, log_dir, **kwargs):
        return method_lib.fit(
            task,
            model,
            private,
            log_dir,
            loss=None,
            optimizer=keras.optimizers.Adam(0.01),
            epochs=_EPOCHS,
            **kwargs,
        )


class PublishedDPMAC(_DPMAC):
    name = "dpmac_published"
    label = "published (DP-MAC), claimed"
    about = "Shuffled batches of a fixed size, accounted as the paper does."

    def train(self, task, job, choice, log_dir):
        model = self._model(task, job.seed)
        batch = self._batch(task)
        private = PrivateModel(
            method_lib.budget(task, job.epsilon),
            data=(task.x, task.y),
            guarantee=Published(lot=batch, neighbours=task.spec.neighbours),
        )
        return self._fit(task, model, private, log_dir, batch_size=batch)


class ProvenDPMAC(_DPMAC):
    name = "dpmac_proven"
    label = "proven, DP-MAC"
    about = "All layers, noisy clipped coefficients of Poisson batches."

    def train(self, task, job, choice, log_dir):
        model = self._model(task, job.seed)
        batches = PoissonBatches(task.x, task.y, batch_size=self._batch(task))
        private = PrivateModel(
            method_lib.budget(task, job.epsilon),
            guarantee=Proven(neighbours=task.spec.neighbours),
        )
        return self._fit(task, model, private, log_dir, x=batches)
