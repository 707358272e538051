"""Runs in an environment with tensorflow-empirical-privacy, without keras_fm:
scores of canaries on standard input, what its attacks say on the last line of
standard output."""

import json
import sys
from importlib import metadata

# The package's distribution and the attacks of it, by their names there.
DISTRIBUTION = "tensorflow-empirical-privacy"
ATTACKS = (
    "THRESHOLD_ATTACK",
    "LOGISTIC_REGRESSION",
    "K_NEAREST_NEIGHBORS",
    "RANDOM_FOREST",
    "MULTI_LAYERED_PERCEPTRON",
)


def run(request):
    """Attacks canaries, of which each was trained on or not.

    Args:
        request: dict of `scores`, `(m,)` floats, larger for a coin of 1;
            `coins`, `(m,)`; `outputs`, `(m, k)` of the model, or `None`.

    Returns:
        list of dicts of `attack`, `auc`, `advantage` and `epsilon`.
    """
    import numpy as np
    from tensorflow_privacy.privacy.privacy_tests.membership_inference_attack import (  # noqa: E501
        data_structures,
        membership_inference_attack,
    )

    # Its attackers are trained; the same canaries give the same numbers.
    np.random.seed(0)
    losses = -np.array(request["scores"])
    is_in = np.array(request["coins"]) == 1
    given = {"loss_train": losses[is_in], "loss_test": losses[~is_in]}
    if request["outputs"] is not None:
        outputs = np.array(request["outputs"])
        given |= {
            "logits_train": outputs[is_in],
            "logits_test": outputs[~is_in],
        }
    found = membership_inference_attack.run_attacks(
        data_structures.AttackInputData(**given),
        data_structures.SlicingSpec(entire_dataset=True),
        [data_structures.AttackType[name] for name in ATTACKS],
    )
    return [
        {
            "attack": result.attack_type.name.lower(),
            "auc": float(result.get_auc()),
            "advantage": float(result.get_attacker_advantage()),
            "epsilon": max(
                [0.0, *map(float, result.get_epsilon_lower_bound())]
            ),
        }
        for result in found.single_attack_results
    ]


def main():
    """Answers one request; an empty one by the version alone."""
    text = sys.stdin.read()
    answer = {"version": metadata.version(DISTRIBUTION)}
    if text:
        answer["attacks"] = run(json.loads(text))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
