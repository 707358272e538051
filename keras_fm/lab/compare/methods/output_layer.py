"""Proven forms that read the records for the output layer only.

The affine layer stays at its random initial weights, which makes it public.
"""

import keras

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.heads.rounds import Rounds
from keras_fm.lab.compare.methods import method as method_lib
from keras_fm.private_maps.dp_pca import DPPCA
from keras_fm.public.normalization_layer import NormalizationLayer


class OneRead(method_lib.Method):
    name = "proven"
    label = "proven, one read"
    about = "The output layer's objective is released once."

    def train(self, task, job, choice, log_dir):
        private = method_lib.proven(task, job.epsilon)
        # It starts at the optimum of the released objective.
        return method_lib.fit(
            task, task.model(job.seed, trainable=False), private, log_dir
        )


class ManyReads(method_lib.Method):
    name = "rounds_proven"
    label = "proven, 80 reads"
    about = "80 reads of the output layer, whitened by a released moment."
    needs_delta = True

    def train(self, task, job, choice, log_dir):
        keras.utils.set_random_seed(job.seed)
        body = task.body(job.seed, trainable=False)
        width = task.spec.hidden or task.x.shape[1]
        model = keras.Sequential(
            [
                keras.Input(task.x.shape[1:]),
                *body,
                DPPCA(width, whitening=0.5),
                NormalizationLayer(),
                PrivateDense(
                    task.classes, use_bias=False, rounds=Rounds(reads=80)
                ),
            ]
        )
        private = method_lib.proven(task, job.epsilon)
        return method_lib.fit(
            task, model, private, log_dir, optimizer="sgd", steps_per_epoch=1
        )
