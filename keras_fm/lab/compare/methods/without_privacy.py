"""The twins without noise."""

import keras

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.lab.compare.methods import method as method_lib


class NonPrivate(method_lib.Method):
    name = "non_private"
    label = "non-private"
    about = "All layers, exact softmax cross-entropy."
    private = False

    def train(self, task, job, choice, log_dir):
        return method_lib.fit(
            task,
            task.model(job.seed, head=keras.layers.Dense),
            None,
            log_dir,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            epochs=task.spec.epochs,
        )


class Truncated(method_lib.Method):
    name = "truncated"
    label = "truncated (Taylor)"
    about = "All layers, Taylor cross-entropy, no noise."
    private = False

    def train(self, task, job, choice, log_dir):
        return method_lib.fit(
            task,
            task.model(job.seed, head=_unprotected),
            None,
            log_dir,
            epochs=task.spec.epochs,
        )


def _unprotected(*args, **kwargs):
    return PrivateDense(*args, unprotected=True, **kwargs)
