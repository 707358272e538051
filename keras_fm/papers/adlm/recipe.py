"""AdLM and ILM: noise on the first layer's inputs, by relevance or equal."""

from keras_fm.core.guarantee import Published
from keras_fm.heads.taylor_cross_entropy import TaylorCrossEntropy
from keras_fm.papers.adlm.adaptive_laplace import AdaptiveLaplace
from keras_fm.papers.adlm.claims import PublishedAdLM


def network(
    data, classes, form="paper", architecture="dense", width=1.0, **layers
):
    """The published `AdaptiveLaplace` for these records."""
    settings = PublishedAdLM(form=form, architecture=architecture, width=width)
    return AdaptiveLaplace(
        data[0].shape[1:], classes, guarantee=settings, **layers
    )


def twin(training, data, classes, loss=TaylorCrossEntropy, **architecture):
    """The network without noise, whose relevance scales AdLM's noise."""
    model = network(data, classes, unprotected=True, **architecture)
    training.fit(model, data, loss=loss)
    return model


def published(training, data, classes, twin=None, shares=None, **architecture):
    """AdLM as printed; for ILM pass `twin=None` and `adaptive=False`."""
    model = network(data, classes, **architecture)
    given = {} if shares is None else {"shares": shares}
    guarantee = model.guarantee(
        lot=training.lot or len(data[0]), relevance_of=twin, **given
    )
    return training.fit(model, data, training.claimed(data, guarantee))


def perturbed(training, model, data, noise="once"):
    """ILM in parts: a model with a `PerturbedAffine` and a `PrivateDense`,
    or with the `PrivateDense` alone."""
    settings = None if noise == "once" else PublishedAdLM(noise=noise)
    guarantee = Published(lot=training.lot or len(data[0]), settings=settings)
    return training.fit(model, data, training.claimed(None, guarantee))


def proven(training, data, classes, **architecture):
    """The proven form, which releases relevance and output layer."""
    model = AdaptiveLaplace(data[0].shape[1:], classes, **architecture)
    return training.release(model, data)
