"""A release of an objective, with a budget and a ledger of its own."""

from keras_fm.kernel import release as release_lib
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate


def make_release(
    objective,
    data,
    epsilon=1.0,
    delta=1e-5,
    neighbours="add_remove",
    seed=1,
    **kwargs,
):
    budget = PrivacyBudget(epsilon, delta)
    return release_lib.release(
        objective,
        data,
        **{
            "mechanism": calibrate(objective, budget, neighbours=neighbours),
            "ledger": Ledger(budget, neighbours=neighbours),
            "name": "head",
            "noise": NoiseSource(seed),
            **kwargs,
        },
    )
