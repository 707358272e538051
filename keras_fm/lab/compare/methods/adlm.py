"""AdLM and ILM: the adaptive Laplace mechanism and its plain sibling."""

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.lab.compare.methods import method as method_lib
from keras_fm.lab.compare.watch import Watch
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import AdaptiveLaplace
from keras_fm.papers.adlm.perturbed_affine import PerturbedAffine
from keras_fm.parts.guarantee import Published


class PublishedILM(method_lib.Method):
    name = "published"
    label = "published (ILM), claimed"
    about = "`PerturbedAffine` and noisy coefficients, one noise for all steps."

    def train(self, task, job, choice, log_dir):
        spec = task.spec
        private = PrivateModel(
            job.epsilon, guarantee=Published(lot=spec.batch_size)
        )
        return method_lib.fit(
            task,
            task.model(job.seed, kind=PerturbedAffine),
            private,
            log_dir,
            epochs=spec.epochs,
        )


def _model(task, seed, guarantee, **kwargs):
    keras.utils.set_random_seed(seed)
    return AdaptiveLaplace(
        task.x.shape[1:], task.classes, guarantee=guarantee, **kwargs
    )


class PublishedAdLM(method_lib.Method):
    name = "adlm_published"
    label = "published (AdLM), claimed"
    about = (
        "`AdaptiveLaplace` as published: its own ReLU layer, min-max "
        "normalisation, a pre-trained twin."
    )

    def _model(self, task, seed, **kwargs):
        return _model(task, seed, "published", hidden=task.units, **kwargs)

    def prepare(self, task, job):
        """One pre-training serves all budgets; each run counts its cost."""
        if job.seed not in task.pretrained:
            spec = task.spec
            with Watch() as watch:
                model = self._model(task, job.seed, unprotected=True)
                model.compile(
                    keras.optimizers.Adam(spec.learning_rate),
                    TaylorCrossEntropy(),
                )
                model.fit(
                    task.x,
                    task.y,
                    batch_size=spec.batch_size,
                    epochs=spec.epochs,
                    verbose=0,
                )
            cost = method_lib.Before(
                watch.seconds, watch.cpu_seconds, watch.peak_mib
            )
            task.pretrained[job.seed] = model, cost
        return task.pretrained[job.seed][1]

    def train(self, task, job, choice, log_dir):
        model = self._model(task, job.seed)
        perturbed = model.get_layer("perturbed")
        perturbed.relevance_of(task.pretrained[job.seed][0])
        private = PrivateModel(
            job.epsilon,
            data=(task.x, task.y),
            guarantee=model.guarantee(lot=task.spec.batch_size),
        )
        return method_lib.fit(
            task, model, private, log_dir, epochs=task.spec.epochs
        )


class ProvenAdLM(method_lib.Method):
    name = "adlm_proven"
    label = "proven, adaptive (AdLM)"
    about = (
        "`AdaptiveLaplace` around the layers of `proven`: the same budget "
        "also pays for the relevance that scales the features."
    )

    def train(self, task, job, choice, log_dir):
        body = task.body(job.seed, trainable=False)
        top = keras.Sequential(body, name="body") if body else None
        model = _model(task, job.seed, "proven", top=top)
        private = method_lib.proven(task, job.epsilon)
        return method_lib.fit(task, model, private, log_dir)
