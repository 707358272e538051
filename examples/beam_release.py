"""A release whose statistics are summed by Apache Beam.

python examples/beam_release.py

Needs `pip install apache-beam`. Here the local runner sums over digits in
batches of 100; the same pipeline runs wherever Beam does.
"""

import os
import tempfile

import apache_beam as beam
import keras
from apache_beam.options.pipeline_options import PipelineOptions
from keras_fm.mechanisms import NoiseSource
from keras_fm.partial_statistics import PartialStatistics

import keras_fm as fm
from keras_fm.beam import SumStatistics
from keras_fm.kernel.release import calibrate, release_statistics


def main():
    (x, y), (x_test, y_test) = fm.datasets.load("digits")
    layer = fm.layers.PrivateDense(10, name="head")
    features = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),  # unit L2 norm
            fm.layers.RandomFeatures(64, kind="fourier", scale=0.7),  # public
            fm.layers.NormalizationLayer(),
        ]
    )
    model = keras.Sequential([features, layer])
    model.build((None, *x.shape[1:]))
    objective = layer.objective()

    # A pipeline reads files and computes features on its workers; what it
    # sums are batches of features and labels, each with a key.
    h = layer.augment(features.predict(x, verbose=0))
    batches = [
        (f"records {i}", (h[i : i + 100], y[i : i + 100]))
        for i in range(0, len(h), 100)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "statistics")

        def write(data):
            with open(path, "wb") as f:
                f.write(data)

        with beam.Pipeline(options=PipelineOptions([])) as pipeline:
            _ = (
                pipeline
                # The first one twice, as after a retry: it counts once.
                | beam.Create([*batches, batches[0]])
                | SumStatistics(objective)
                | beam.Map(write)
            )
        with open(path, "rb") as f:
            partial = PartialStatistics.from_bytes(f.read(), objective)

    budget = fm.PrivacyBudget(epsilon=2.0, delta=1e-5)
    ledger = fm.Ledger(budget, neighbours="add_remove")
    release = release_statistics(
        partial,
        mechanism=calibrate(objective, budget, neighbours="add_remove"),
        ledger=ledger,
        name=layer.name,
        noise=NoiseSource(),
    )
    print(ledger.statement())
    print(f"records, by the release: {release.estimated_records():.0f}")

    layer.learn(release, ledger)
    model.compile(loss=fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"test accuracy {100 * accuracy:.1f} %")


if __name__ == "__main__":
    main()
