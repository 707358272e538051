"""The papers' models as they are audited: the form whose claim is weakest.

A family is a pair of functions, `fit` to `(model, ledger)` and `control`.
"""

import math

import keras

from keras_fm.lab.audits import controls
from keras_fm.lab.audits.pictures import halved, picture_shape
from keras_fm.models import BehaviorAutoencoder, PrivateCDBN, PublishedCDBN
from keras_fm.papers.adlm import recipe as adlm
from keras_fm.papers.adlm.adaptive_laplace import AdaptiveLaplace
from keras_fm.papers.dpa import recipe as dpa
from keras_fm.papers.dpmac import recipe as dpmac
from keras_fm.papers.functional_net import recipe as functional_net
from keras_fm.papers.pcdbn import recipe as pcdbn

# AdLM ----------------------------------------------------------------------
#
# Published: the form of the authors' code with one hidden layer, and what
# makes its noise small: few inputs (pictures at half their size), and most of
# the budget on them (the claim is the sum, however it is split). Noise is
# drawn again at every step, so the network learns to be right under noise.
# The attack asks it under noise, too: the mean of many answers, with noise of
# the scales that the noisy relevance gave, which the paper's own proof counts
# as revealed.

# Of relevance, inputs and loss.
ADLM_SHARES = (0.05, 0.9, 0.05)
_ANSWERS = 200


def _adlm_architecture(subject):
    if subject.is_published:
        return {"hidden": subject.hidden, "form": "code"}
    # Many features above the scaling, or even the control fits no label.
    return {"hidden": 16 * subject.hidden, "bounds": (0.0, 1.0)}


def fit_adlm(subject, x, y, classes):
    training = subject.training(x)
    architecture = _adlm_architecture(subject)
    if not subject.is_published:
        made = adlm.proven(training, (x, y), classes, **architecture)
        return made.model, made.ledger
    x = halved(x)
    twin = adlm.network((x, y), classes, unprotected=True, **architecture)
    controls.learn(subject, twin, x, y, epochs=max(1, subject.epochs // 10))
    made = adlm.published(
        training, (x, y), classes, twin, ADLM_SHARES, **architecture
    )
    return _under_noise(made.model, _ANSWERS), made.ledger


def control_adlm(subject, x, y, classes):
    """The model without privacy, and without noise to ask it under."""
    architecture = _adlm_architecture(subject) | {"unprotected": True}
    if not subject.is_published:
        model = AdaptiveLaplace(x.shape[1:], classes, **architecture)
        return controls.learn_output(subject, model, x, y)
    x = halved(x)
    model = adlm.network((x, y), classes, **architecture)
    return _under_noise(controls.learn(subject, model, x, y), 1)


def _under_noise(model, answers):
    """Mean logits under the noise of the training, if there is any."""

    def logits(x):
        x = halved(x)
        found = sum(
            keras.ops.convert_to_numpy(model(x, training=True))
            for _ in range(answers)
        )
        return found / answers

    return logits


# dPA -----------------------------------------------------------------------
#
# dPAH: the first half of a record conditions the code of the second.


def _dpa_network(subject, x, classes, **kwargs):
    kwargs["guarantee"] = subject.guarantee
    if subject.model == "dpa":
        return dpa.network(x.shape[1:], classes, subject.hidden, **kwargs)
    half, end = x.shape[1] // 2, x.shape[1]
    return BehaviorAutoencoder(
        x.shape[1:],
        {"past": (0, half), "present": (half, end)},
        bounds=(0.0, 1.0),
        hidden=(subject.hidden,),
        units=classes,
        **kwargs,
    )


def _dpa_training(subject, x, epochs):
    return subject.training(x).but(pretraining_epochs=max(1, epochs // 10))


def fit_dpa(subject, x, y, classes):
    model = _dpa_network(subject, x, classes)
    training = _dpa_training(subject, x, subject.epochs)
    if subject.is_published:
        made = dpa.published(training, model, (x, y))
    else:
        made = training.release(model, (x, y))
    return made.model, made.ledger


def control_dpa(subject, x, y, classes):
    """The model without privacy. Its encoder is learned in both private forms,
    too."""
    model = _dpa_network(subject, x, classes, unprotected=True)
    if subject.is_published:
        _dpa_training(subject, x, subject.control_epochs).pretrain(model, x)
    for encoder in model.encoders:
        encoder.trainable = True
        for variable in encoder.trainable_variables:
            variable.trainable = "decoder" not in variable.name
    return controls.learn(subject, model, x, y)


# pCDBN ---------------------------------------------------------------------
#
# Published: the form of the authors' code, one small RBM, and a dense layer
# that is trained on the records under noise on the output layer's
# coefficients alone. Proven: the output layer on the maps, which are many.

_PRETRAINING = 20
_POLYNOMIALS = {
    "pcdbn": "chebyshev",
    "pcdbn_te": "tanh",
    "pcdbn_pw": "piecewise",
}


def _pcdbn_network(subject, x, classes, **kwargs):
    """The model, and the records as pictures."""
    shape = (*picture_shape(x.shape[1]), 1)
    if subject.is_published:
        kwargs |= {"maps": ((8, 3),), "dense": subject.hidden}
        kwargs["guarantee"] = PublishedCDBN(form="code")
    else:
        maps = max(1, subject.hidden // 4)
        kwargs |= {"maps": ((maps, 3),), "dense": 0}
    model = PrivateCDBN(
        shape,
        classes,
        pooling=1,
        polynomial=_POLYNOMIALS[subject.model],
        **kwargs,
    )
    return model, x.reshape(-1, *shape)


def _pcdbn_training(subject, x, epochs):
    epochs = min(_PRETRAINING, epochs)
    return subject.training(x).but(pretraining_epochs=epochs)


def fit_pcdbn(subject, x, y, classes):
    model, x = _pcdbn_network(subject, x, classes)
    training = _pcdbn_training(subject, x, subject.epochs)
    if subject.is_published:
        made = pcdbn.published(training, model, (x, y))
    else:
        made = training.release(model, (x, y))
    return _flat(model), made.ledger


def control_pcdbn(subject, x, y, classes):
    """The model without privacy; the RBM rests where it rests in the private
    form: after pre-training, or from the start."""
    model, x = _pcdbn_network(subject, x, classes, unprotected=True)
    if not subject.is_published:
        return _flat(controls.learn_output(subject, model, x, y))
    _pcdbn_training(subject, x, subject.control_epochs).pretrain(model, x)
    return _flat(controls.learn(subject, model, x, y))


def _flat(model):
    """For flat records."""
    shape = model.input_shape[1:]
    return keras.Sequential(
        [keras.Input((math.prod(shape),)), keras.layers.Reshape(shape), model]
    )


# DP-MAC --------------------------------------------------------------------


def _dpmac_network(subject, x, classes):
    return dpmac.network(
        x.shape[1:],
        subject.hidden,
        classes,
        below=functional_net.centred(),
        z_rate=0.1,
    )


def fit_dpmac(subject, x, y, classes):
    # Every step costs noise: an expected batch of a fourth of the records.
    lot = min(subject.batch_size or max(1, len(x) // 4), len(x))
    made = dpmac.fit(
        subject.training(x).but(lot=lot),
        _dpmac_network(subject, x, classes),
        (x, y),
        subject.guarantee,
    )
    return made.model, made.ledger


def control_dpmac(subject, x, y, classes):
    model = _dpmac_network(subject, x, classes)
    return controls.learn_layers(subject, model, x, y)
