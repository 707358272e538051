"""pCDBN: released convolutional filters, on the images themselves."""

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.lab.compare.methods import method as method_lib
from keras_fm.models import PrivateCDBN


def _layers(task):
    """Maps and dense units: the paper's, or smaller ones for small images."""
    if min(task.images.shape[1:3]) < 16:
        return {"maps": ((16, 3), (32, 3)), "dense": 128}
    return {}


class PublishedCDBN(method_lib.Method):
    name = "pcdbn_published"
    label = "published (pCDBN), claimed"
    about = (
        "`PrivateCDBN` as published, on images; strides of 2 for pooling, as "
        "in its authors' code."
    )

    def train(self, task, job, choice, log_dir):
        spec = task.spec
        keras.utils.set_random_seed(job.seed)
        model = PrivateCDBN(
            task.images.shape[1:],
            task.classes,
            guarantee="published",
            strides=2,
            pooling=1,
            **_layers(task),
        )
        private = PrivateModel(
            job.epsilon,
            data=(task.images, task.y),
            guarantee=model.guarantee(lot=spec.batch_size),
        )
        model.pretrain(
            task.images,
            private,
            epochs=2,
            batch_size=spec.batch_size,
            optimizer=keras.optimizers.Adam(1e-3),
        )
        return method_lib.fit(
            task,
            model,
            private,
            log_dir,
            x=task.images,
            x_test=task.images_test,
            epochs=spec.epochs,
        )


class ProvenCDBN(method_lib.Method):
    name = "pcdbn_proven"
    label = "proven, filters (pCDBN)"
    about = "`PrivateCDBN`: every layer's filters from a release, on images."

    def train(self, task, job, choice, log_dir):
        keras.utils.set_random_seed(job.seed)
        model = PrivateCDBN(
            task.images.shape[1:], task.classes, **_layers(task)
        )
        private = method_lib.proven(task, job.epsilon, x=task.images)
        return method_lib.fit(
            task,
            model,
            private,
            log_dir,
            x=task.images,
            x_test=task.images_test,
            batch_size=1000,
            steps_per_epoch=1,
        )
