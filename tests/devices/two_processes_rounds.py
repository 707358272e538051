"""One of two processes that learn in rounds; each holds half of the batches.

python tests/devices/two_processes_rounds.py INDEX ADDRESS OUT

The first process sends weights out, adds up the sums of both, charges the
ledger once and draws the noise. `ADDRESS` is a file for a socket.
"""

import json
import os
import sys
import time
from multiprocessing import connection

import keras
import numpy as np

import keras_fm as fm
from keras_fm.heads.rounds import Rounds
from keras_fm.kernel.access.gathered_rounds import GatheredRounds
from keras_fm.kernel.ledger.noisy_statistics import Release
from keras_fm.kernel.mechanisms import NoiseSource, SampledGaussianMechanism
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate
from keras_fm.papers.functional_net.expansion_descent import ExpansionDescent
from keras_fm.queries import GradientQuery

BUDGET = fm.PrivacyBudget(2.0, 1e-5)
ROUNDS = Rounds(rounds=3, clip=0.1, learning_rate=4.0)
OBJECTIVE = GradientQuery(
    num_features=64, num_outputs=10, clip=0.1, loss="crammer_singer"
)


def batches():
    """Of normalised records, in their order."""
    (x, y), _ = fm.datasets.load("digits")
    h = x[:400].reshape(400, 64).astype("float32")
    h /= np.linalg.norm(h, axis=1, keepdims=True) * 1.0001
    return [(h[i : i + 50], y[i : i + 50]) for i in range(0, 400, 50)]


def gradients():
    """What the reads of an output layer need to be paid for."""
    mechanism = SampledGaussianMechanism(
        sensitivity=OBJECTIVE.sensitivity("l2", neighbours="add_remove"),
        noise_multiplier=6.0,
        sampling_rate=1.0,
        steps=ROUNDS.rounds,
    )
    return {
        "mechanism": mechanism,
        "ledger": fm.Ledger(BUDGET, neighbours="add_remove"),
        "name": "head",
        "noise": NoiseSource(0),
    }


def network():
    """The same model everywhere: its initial weights are public."""
    keras.utils.set_random_seed(0)
    return fm.models.FunctionalNet(
        (64,),
        [keras.layers.Dense(6, activation="sigmoid"), keras.layers.Dense(10)],
        rounds=2,
        name="net",
    )


def expansions(model):
    objective = model.objective("l2")
    return objective, {
        "mechanism": calibrate(
            objective,
            BUDGET,
            neighbours="add_remove",
            share=1 / model.rounds,
        ),
        "rounds": model.rounds,
        "ledger": fm.Ledger(BUDGET, neighbours="add_remove"),
        "name": model.name,
        "noise": NoiseSource(0),
    }


def sums_of_gradients(weights, mine):
    partial = PartialStatistics(OBJECTIVE.at(weights))
    for h, y in mine:
        partial.add(h, y)
    return partial


def sums_of_expansions(model, objective, mine):
    partial = PartialStatistics(objective.at(model.augmented_weights()))
    for x, y in mine:
        partial.add(model.factors(x, y))
    return partial


def first(mine, address, out):
    with connection.Listener(address) as listener:
        open(os.path.join(out, "listening"), "w").close()
        with listener.accept() as other:

            def gather(weights):
                other.send_bytes(np.asarray(weights).tobytes())
                yield sums_of_gradients(weights, mine)
                yield other.recv_bytes()

            arguments = gradients()
            paid = GatheredRounds(OBJECTIVE, gather, **arguments)
            weights = ROUNDS.descend(paid, np.zeros((64, 10)), 400)
            entries = [len(arguments["ledger"].entries)]

            model = network()
            objective, arguments = expansions(model)
            descent = ExpansionDescent(model)

            def gather(weights):
                yield sums_of_expansions(model, objective, mine)
                yield other.recv_bytes()

            paid = GatheredRounds(objective, gather, **arguments)
            path = os.path.join(out, "round.npz")
            for _ in range(model.rounds):
                made = paid(model.augmented_weights())
                descent.learn(made)
                made.save(path)
                with open(path, "rb") as f:
                    other.send_bytes(f.read())
            ledger = arguments["ledger"]
            other.send_bytes(ledger.to_json().encode())
            descent.finish(ledger)
            entries.append(len(ledger.entries))
    return {
        "weights": weights.tobytes().hex(),
        "entries": entries,
        "network": bits(model),
    }


def second(mine, address, out):
    for _ in range(2000):
        if os.path.exists(os.path.join(out, "listening")):
            break
        time.sleep(0.05)
    with connection.Client(address) as other:
        for _ in range(ROUNDS.rounds):
            weights = np.frombuffer(other.recv_bytes()).reshape(64, 10)
            other.send_bytes(sums_of_gradients(weights, mine).to_bytes())
        model = network()
        objective, _ = expansions(model)
        descent = ExpansionDescent(model)
        path = os.path.join(out, "round_received.npz")
        for _ in range(model.rounds):
            partial = sums_of_expansions(model, objective, mine)
            other.send_bytes(partial.to_bytes())
            with open(path, "wb") as f:
                f.write(other.recv_bytes())
            descent.learn(Release.load(path))
        descent.finish(fm.Ledger.from_json(other.recv_bytes().decode()))
    return {"network": bits(model)}


def bits(model):
    weights = [w.astype(np.float64) for w in model.augmented_weights()]
    return [w.tobytes().hex() for w in weights]


def main():
    index, address, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    mine = batches()[index::2]
    found = (first, second)[index](mine, address, out)
    with open(os.path.join(out, f"rounds_{index}.json"), "w") as f:
        json.dump(found, f)


if __name__ == "__main__":
    main()
