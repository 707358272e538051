"""Every way of training that a comparison knows, one file per family."""

from keras_fm.lab.compare.methods import (
    adlm,
    dp_sgd,
    dpa,
    dpmac,
    functional_net,
    output_layer,
    pcdbn,
    without_privacy,
)

METHODS = {
    method.name: method()
    for method in (
        without_privacy.NonPrivate,
        without_privacy.Truncated,
        adlm.PublishedILM,
        adlm.PublishedAdLM,
        output_layer.OneRead,
        output_layer.ManyReads,
        adlm.ProvenAdLM,
        dpa.PublishedDPA,
        dpa.ProvenDPA,
        pcdbn.PublishedCDBN,
        pcdbn.ProvenCDBN,
        dpmac.PublishedDPMAC,
        dpmac.ProvenDPMAC,
        functional_net.PublishedFunctionalNet,
        functional_net.ProvenFunctionalNet,
        dp_sgd.Vectorized,
        dp_sgd.FastClipping,
        dp_sgd.Adam,
        dp_sgd.OnFeatures,
        dp_sgd.JaxPrivacy,
        dp_sgd.JaxPrivacyOnFeatures,
    )
}


def available():
    """Names of the methods that run here."""
    return tuple(name for name, m in METHODS.items() if m.available())
