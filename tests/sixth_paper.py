"""A sixth paper, outside the package: classification by noisy class means.

What CONTRIBUTING.md asks of a paper, in its order. For record (h, y) with
`||h||_2 <= C` the statistic is `(h, k)` in row y: summed, every row holds the
sum of its class and k times its count.
"""

import dataclasses
import functools
import math

import keras
import numpy as np
from keras import ops

import keras_fm as fm
from keras_fm.core.planned_release import PlannedRelease
from keras_fm.core.private_part import ReleasedLayer
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import budget, sums
from keras_fm.kernel.ledger.noisy_statistics import Release, released_as
from keras_fm.lab import compare as experiments
from keras_fm.papers import paper_model

# The query and what is released of it ----------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassMeansQuery:
    """Sums and counts of every class, `(M, m + 1)`.

    Proof: one record changes one row by `(h, k)`, two records of one class
    by `h - h'`, two of different classes two rows.
    """

    num_features: int
    num_classes: int
    feature_bound: float = 1.0
    constant: float = 1.0

    names = ("sums",)
    proof = "tests/sixth_paper.py"

    @property
    def uses(self):
        return f"sums and counts of {self.num_classes} classes, once"

    @property
    def shapes(self):
        return ((self.num_classes, self.num_features + 1),)

    @property
    def size(self):
        return math.prod(self.shapes[0])

    @property
    def entry_bounds(self):
        return (max(self.feature_bound, self.constant),)

    def zero(self):
        return (np.zeros(self.shapes[0]),)

    def num_records(self, h, y):
        return len(h)

    def accumulate(self, statistics, h, y, clip=False):
        rows = bounds_lib.project_to_ball(h, self.feature_bound, clip=clip)
        rows = np.pad(rows, ((0, 0), (0, 1)), constant_values=self.constant)
        paper_model.check_labels(y, self.num_classes)
        (found,) = statistics
        np.add.at(found, np.asarray(y, int).reshape(-1), rows)
        return (found,)

    def sensitivity(self, norm, *, neighbours):
        c, m = self.feature_bound, self.num_features
        relation = budget.Neighbours.of(neighbours)
        replace = relation is budget.Neighbours.REPLACE_ONE
        if norm == "l1":
            return (1 + replace) * (math.sqrt(m) * c + self.constant)
        one = math.hypot(c, self.constant)
        return max(math.sqrt(2) * one, 2 * c) if replace else one

    def rounding_error(self, norm):
        return sums.error_bound(self.sensitivity(norm, neighbours="add_remove"))

    def pack(self, statistics, norm):
        return np.array(statistics[0], np.float64).ravel()

    def unpack(self, vector, norm):
        return (np.asarray(vector, np.float64).reshape(self.shapes[0]),)

    def config(self):
        return dataclasses.asdict(self)


@released_as(ClassMeansQuery)
class ClassMeansRelease(Release):
    """Noisy sums: their means are post-processing."""

    def means(self):
        """`(M, m)`, inside the ball that the records lie in."""
        found, query = self.statistics["sums"], self.query
        count = np.maximum(found[:, -1:] / query.constant, 1.0)
        return bounds_lib.project_to_ball(
            found[:, :-1] / count, query.feature_bound, clip=True
        )


# The layer -------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="sixth_paper")
class ClassMeans(ReleasedLayer):
    """Logits `2 h . m_c - |m_c|^2`: the nearest class mean wins."""

    trains_on_release = True

    def __init__(self, units, feature_bound=1.0, **kwargs):
        super().__init__(**kwargs)
        self.units, self.feature_bound = units, feature_bound

    def build(self, input_shape):
        self.means = self.add_weight(
            name="means", shape=(self.units, input_shape[-1])
        )

    def call(self, inputs, training=None):
        self.in_training(training)
        means = ops.cast(self.means, inputs.dtype)
        if self.is_released:
            # No record may move the weights, in whatever loop.
            means = ops.stop_gradient(means)
        logits = 2 * ops.matmul(inputs, ops.transpose(means))
        return logits - ops.sum(ops.square(means), axis=1)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "feature_bound": self.feature_bound,
        }

    # What it asks of the records

    def release_names(self):
        return [self.name]

    def check_labels(self, y, n):
        paper_model.check_labels(y, self.units)

    def augment(self, features):
        return features

    def planned_releases(self, reading):
        return [
            PlannedRelease(
                name=self.name,
                query=ClassMeansQuery(
                    num_features=self.means.shape[1],
                    num_classes=self.units,
                    feature_bound=self.feature_bound,
                ),
                read=functools.partial(reading.labelled, self),
                learn=functools.partial(reading.keep, self),
            )
        ]

    def install(self, release, reading, start):
        self.means.assign(release.means())
        self._set_hidden("released_means", release.means())
        self.mark_released(reading.ledger.to_json())

    # What it trains on, and what is saved of that

    def released_objective(self):
        apart = self.means - self._get_hidden("released_means")
        return ops.sum(ops.square(apart))

    def _release_arrays(self):
        return {
            "released_means": ops.convert_to_numpy(
                self._get_hidden("released_means")
            )
        }

    def _take_release_arrays(self, arrays):
        self._set_hidden("released_means", np.asarray(arrays["released_means"]))


# The model and how it is trained ---------------------------------------------


def model(input_shape, units):
    made = keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
            ClassMeans(units, name="means"),
        ]
    )
    made.compile("sgd", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    return made


def private(budget, x, y):
    return fm.callbacks.PrivateModel(budget, data=(x, y))


# Beside the others ----------------------------------------------------------


def train(task, seed, training):
    """As a comparison asks for it."""
    keras.utils.set_random_seed(seed)
    made = model(task.x.shape[1:], task.classes)
    callback = private(training.budget(), *task.data)
    return training.fit(made, task.data, callback, optimizer="sgd")


METHOD = experiments.Method(
    name="class_means",
    label="proven, class means",
    kind="proven",
    about="The nearest noisy class mean.",
    train=train,
)
