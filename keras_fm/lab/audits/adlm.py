"""AdLM: noise on the inputs of the first layer, by their relevance.

Published: the form of the authors' code with one hidden layer, and what makes
its noise small: few inputs (pictures at half their size), and most of the
budget on them (the claim is the sum, however it is split). Noise is drawn again
at every step, so the network learns to be right under noise. The attack asks it
under noise, too: the mean of many answers, with noise of the scales that the
noisy relevance gave, which the paper's own proof counts as revealed.
"""

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.lab.audits import public_maps, training
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import AdaptiveLaplace

# Of relevance, inputs and loss.
_SHARES = (0.05, 0.9, 0.05)
_ANSWERS = 200


def fit(subject, x, y, classes):
    """`(model, ledger)`; published: `(mean of noisy answers, ledger)`."""
    if not subject.is_published:
        model = _proven(subject, x.shape[1:], classes)
        return model, training.fit_released(subject, model, x, y)
    x = public_maps.halved(x)
    model = _published(subject, x, classes)
    twin = _published(subject, x, classes, unprotected=True)
    training.fit_exactly(
        subject, twin, x, y, epochs=max(1, subject.epochs // 10)
    )
    model.get_layer("perturbed").relevance_of(twin)
    private = PrivateModel(
        subject.epsilon,
        data=(x, y),
        guarantee=model.guarantee(lot=subject.lot(x), shares=_SHARES),
    )
    training.fit(subject, model, TaylorCrossEntropy(), x, y, [private])
    return _view(model, _ANSWERS), private.ledger


def control(subject, x, y, classes):
    """The model without privacy, and without noise to ask it under."""
    if not subject.is_published:
        model = _proven(subject, x.shape[1:], classes, unprotected=True)
        return training.fit_output_exactly(subject, model, x, y)
    x = public_maps.halved(x)
    model = _published(subject, x, classes, unprotected=True)
    return _view(training.fit_exactly(subject, model, x, y), 1)


def _published(subject, x, classes, **kwargs):
    return AdaptiveLaplace(
        x.shape[1:],
        classes,
        guarantee="published",
        hidden=subject.hidden,
        form="code",
        **kwargs,
    )


def _proven(subject, inputs, classes, **kwargs):
    # Many features above the scaling, or even the control fits no label.
    return AdaptiveLaplace(
        inputs,
        classes,
        bounds=(0.0, 1.0),
        hidden=16 * subject.hidden,
        **kwargs,
    )


def _view(model, answers):
    """Mean logits under the noise of the training, if there is any."""

    def logits(x):
        x = public_maps.halved(x)
        found = sum(
            keras.ops.convert_to_numpy(model(x, training=True))
            for _ in range(answers)
        )
        return found / answers

    return logits
