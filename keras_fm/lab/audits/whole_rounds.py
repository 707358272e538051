"""All rounds of `Rounds` as one release, told from their neighbour's.

The records of a fit are canaries with one feature each: record j is row j of
the identity, so what it adds in a round, and the weights that this leads to,
stay in row j. Row by row that is the game of many runs with a coin each
(docs/proofs/audit.md), played as often as there are features by one fit of
`GradientRounds`: its sampler, sums, clipping, charge and noise. Absent
canaries leave a record of zeros, so n is the same for all coins.

The adversary sees every noisy sum and knows the weights before each round;
all else about a round is then known but for its noise (and its sample), so
the sum of the log-likelihood ratios of the rounds is the best test of the
whole. That the rows of a fit are independent is what its noise promises:
noise that is used twice has the attack `"repeated"`.
"""

import numpy as np

from keras_fm.heads.gradient_query import GradientQuery
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import SampledGaussianMechanism
from keras_fm.kernel.planning import sampled_noise
from keras_fm.lab.auditing.objective import ObjectiveAudit
from keras_fm.lab.auditing.white_box import sampled_ratio

# A score has the ratios of all rounds, or whether rounds share noise.
ATTACKS = ("likelihood", "repeated")
# Canaries of a fit: their rows fit into a processor's cache.
_LANES = 512


def audit_rounds(
    open_rounds,
    rounds,
    budget,
    *,
    neighbours,
    noise,
    records_of_owner=None,
    runs=2_000_000,
    lanes=_LANES,
    attack="likelihood",
):
    """Lower bound on the epsilon of all rounds together.

    Args:
        open_rounds: the `GradientRounds` that are audited
            (`keras_fm.kernel.access.gradient_rounds`).
        rounds: a `Rounds` without whitening, of a loss of one output, such as
            `loss="cross_entropy"`. `batch_size` is out of `lanes` records.
        budget: the `PrivacyBudget` that they spend, with delta > 0.
        neighbours: `"add_remove"`, or `"replace_one"` with full batches.
        noise: a `NoiseSource`.
        records_of_owner: `None`, or int: the privacy unit is an owner of so
            many equal records.
        runs: int, canaries in all fits together.
        lanes: int, canaries of one fit.
        attack: `"likelihood"`, the best test of independent noise; or
            `"repeated"`: which of the two data sets leaves less between one
            round and the next. It sees noise that is used twice where what a
            canary adds differs between rounds: at a clip above its gradient.

    Returns:
        An `ObjectiveAudit`: `epsilon` is what the ledger of a fit composes,
        `reach` what a canary adds in a round over the clip (or what replaces
        it over twice that), on average.
    """
    checks.one_of("attack", attack, ATTACKS)
    rate = (rounds.batch_size or lanes) / lanes
    objective = GradientQuery(
        num_features=lanes,
        num_outputs=1,
        clip=rounds.clip,
        loss=rounds.loss,
        grouped=records_of_owner is not None,
    )
    mechanism = SampledGaussianMechanism(
        sensitivity=objective.sensitivity("l2", neighbours=neighbours),
        noise_multiplier=sampled_noise.noise_multiplier(
            (rate, rounds.rounds), budget, neighbours=neighbours
        ),
        sampling_rate=rate,
        steps=rounds.rounds,
    )
    ratios, coins, reaches = [], [], []
    for _ in range(-(-runs // lanes)):
        ledger = Ledger(budget, neighbours=neighbours)
        game = _Game(objective, mechanism, noise, records_of_owner)
        rounds.descend(
            game.play(open_rounds, ledger),
            np.zeros((lanes, 1)),
            rate * lanes,
            mechanism.stddev,
        )
        ratios.append(game.scores[attack])
        coins.append(game.coins)
        reaches.append(game.reached / rounds.rounds)
    return ObjectiveAudit.of_ratios(
        ledger, ratios, coins, reach=float(np.mean(reaches))
    )


class _Game:
    """One fit, and what its rounds tell of every canary."""

    def __init__(self, objective, mechanism, noise, records_of_owner):
        self._objective, self._mechanism = objective, mechanism
        self._noise, self._each = noise, records_of_owner
        lanes = objective.num_features
        self.coins = noise.generator().integers(0, 2, lanes)
        self.scores = {name: np.zeros(lanes) for name in ATTACKS}
        self._last = None
        self.reached = 0.0

    def play(self, open_rounds, ledger):
        """The rounds of this fit, as `Rounds.descend` calls them."""
        features, owners = self._records()
        # Absent: zeros. Replaced: the same features with the other label.
        replaces = ledger.neighbours.replaces
        labels = np.ones(len(features), int)
        shown = np.repeat(self.coins, self._each or 1)
        if replaces:
            labels, given = shown, features
        else:
            given = features * shown[:, None]
        paid = open_rounds(
            self._objective,
            lambda: [(given, labels, *owners)],
            mechanism=self._mechanism,
            ledger=ledger,
            name="canaries",
            noise=self._noise,
            keep=True,
        )

        def one_round(weights):
            noisy = paid(weights)
            with_it = self._added(features, labels * 0 + 1, owners, weights)
            without = 0.0
            if replaces:
                without = self._added(features, labels * 0, owners, weights)
            self._compare(noisy[:, 0], with_it, without)
            return noisy

        return one_round

    def _records(self):
        lanes = self._objective.num_features
        features = np.eye(lanes)
        if self._each is None:
            return features, ()
        return (
            np.repeat(features, self._each, axis=0),
            (np.repeat(np.arange(lanes), self._each),),
        )

    def _added(self, features, labels, owners, weights):
        """What every canary would add at these weights, `(lanes,)`."""
        checked = self._objective.check_records(
            features, labels, False, *owners
        )
        return self._objective.total(*checked[:2], weights, *checked[2:])[:, 0]

    def _compare(self, noisy, with_it, without):
        apart = with_it - without
        middle = (with_it + without) / 2
        ratio = (noisy - middle) * apart / self._mechanism.stddev**2
        self.scores["likelihood"] += sampled_ratio(
            ratio, self._mechanism.sampling_rate
        )
        self.reached += np.abs(apart) / self._mechanism.sensitivity
        left = noisy - without, noisy - with_it
        if self._last is not None:
            steps = [np.abs(a - b) for a, b in zip(left, self._last)]
            self.scores["repeated"] += steps[0] - steps[1]
        self._last = left
