"""The membership attacks of tensorflow-empirical-privacy on the same canaries.

They run in an environment of their own, since what they ask for is too old
for this one. Scores and coins go there by a pipe, and reach no file.
"""

import dataclasses
import json
import math
import subprocess
from pathlib import Path

from keras_fm.auditing import empirical_privacy

TOOL = empirical_privacy.DISTRIBUTION
MEANING = (
    f"The attacks of {TOOL} saw the same canaries: whether a coin was 1. AUC "
    "0.5 and advantage 0 are chance. Its epsilon is the best of all "
    "thresholds, each at 95% by itself, for delta = 0 and independent "
    "canaries: no lower bound, and no part of the verdict."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opinion:
    """What one of its attacks says of one training.

    Attributes:
        attack: its name there.
        auc: area under the curve of right against wrong guesses.
        advantage: largest difference of the two rates.
        epsilon: what it calls a lower bound; see `MEANING`.
    """

    attack: str
    auc: float
    advantage: float
    epsilon: float

    def __post_init__(self):
        for name in ("auc", "advantage", "epsilon"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"`{name}` of an opinion is no number")


def check(python):
    """Refuses a Python that cannot give an opinion.

    Args:
        python: interpreter of an environment with
            tensorflow-empirical-privacy.

    Raises:
        ValueError: if it is none, or lacks the package.
    """
    try:
        _run(python, "")
        return
    except RuntimeError as e:
        why = str(e)
    except (OSError, TypeError):
        why = "there is no such file that can be run"
    raise ValueError(
        "`second_opinion` must be the Python of an environment with "
        f"{TOOL} (docs/audit.md says how to make one). Received: "
        f"second_opinion={python!r}: {why}"
    )


def ask(python, scores, coins, outputs):
    """The opinions on one training.

    Args:
        python: see `check`.
        scores: `(m,)` finite floats, larger for a coin of 1.
        coins: `(m,)` zeros and ones.
        outputs: `(m, k)` of the model for the canaries, or `None`.

    Returns:
        tuple of `Opinion`.

    Raises:
        RuntimeError: if the attacks fail.
    """
    request = {
        "scores": scores.tolist(),
        "coins": coins.tolist(),
        "outputs": None if outputs is None else outputs.tolist(),
    }
    found = _run(python, json.dumps(request))["attacks"]
    return tuple(Opinion(**fields) for fields in found)


def _run(python, text):
    # -I: neither this folder nor the user's packages hide theirs.
    done = subprocess.run(
        [python, "-I", str(Path(empirical_privacy.__file__))],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [str(done.returncode)]
        raise RuntimeError(said[-1])
    return json.loads(done.stdout.splitlines()[-1])
