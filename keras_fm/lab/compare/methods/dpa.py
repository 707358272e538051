"""dPA: the deep private auto-encoder under an output layer."""

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.lab.compare.methods import method as method_lib
from keras_fm.models import DeepPrivateAutoencoder
from keras_fm.papers.dpa.private_encoder import PrivateEncoder


class PublishedDPA(method_lib.Method):
    name = "dpa_published"
    label = "published (dPA), claimed"
    about = "One encoder, pre-trained, then fine-tuned, as published."

    def train(self, task, job, choice, log_dir):
        spec = task.spec
        keras.utils.set_random_seed(job.seed)
        # Public features are of unit length: each is in [-1, 1].
        model = DeepPrivateAutoencoder(
            task.x.shape[1:],
            hidden=(task.units,),
            units=task.classes,
            guarantee="published",
            bounds=(-1.0, 1.0),
        )
        private = PrivateModel(
            job.epsilon, data=(task.x, task.y), guarantee=model.guarantee()
        )
        model.pretrain(
            task.x,
            private,
            epochs=spec.epochs,
            batch_size=spec.batch_size,
            optimizer=keras.optimizers.Adam(spec.learning_rate),
        )
        return method_lib.fit(task, model, private, log_dir, epochs=spec.epochs)


class ProvenDPA(method_lib.Method):
    name = "dpa_proven"
    label = "proven, auto-encoder (dPA)"
    about = (
        "The affine layer becomes a `PrivateEncoder`: the same budget also "
        "pays for its moments."
    )

    def train(self, task, job, choice, log_dir):
        keras.utils.set_random_seed(job.seed)
        inputs = task.x.shape[1]
        if task.spec.hidden:
            encoder = PrivateEncoder(min(task.spec.hidden, inputs))
        else:  # In the place of nothing, one that keeps all directions.
            encoder = PrivateEncoder(inputs, whitening=0.5)
        model = keras.Sequential(
            [
                keras.Input(task.x.shape[1:]),
                encoder,
                keras.layers.Rescaling(2.0, offset=-1.0, name="centred"),
                keras.layers.UnitNormalization(name="unit_norm"),
                PrivateDense(
                    task.classes,
                    kernel_initializer=task.head_initializer(job.seed),
                    name="output",
                ),
            ]
        )
        private = method_lib.proven(task, job.epsilon)
        return method_lib.fit(task, model, private, log_dir)
