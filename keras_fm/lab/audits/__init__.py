"""What `keras-fm audit` audits: small forms of our models and their controls.

Every subject is a pair of training functions on one architecture: `fit` with
a `PrivateModel`, and `control` without. Layers that are frozen in the one are
frozen in the other: a control that could learn more than the audited training
would promise power that is not there. What a network memorises shows only
after hundreds of epochs.

The published forms are set up where their claim is weakest, see `papers.py`,
`affine_networks.py` and `functional_net.py`.
"""

from keras_fm.lab.audits.running import load, run, run_script
from keras_fm.lab.audits.subject import MODELS, Subject

__all__ = ["MODELS", "Subject", "load", "run", "run_script"]
