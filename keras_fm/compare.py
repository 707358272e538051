"""Side by side: one architecture, one split, every way of training it.

The architecture is

    public features -> affine layer -> unit norm -> output layer,

and every method starts from the same initial weights:

* `non_private`: all layers train on the exact softmax cross-entropy.
* `truncated`: all layers train on the Taylor cross-entropy, no noise.
* `published`: the AdLM / ILM form (`PerturbedAffine`, noisy coefficients).
* `adlm_published`: `keras_fm.models.AdaptiveLaplace` as published, with its
  own hidden layer (ReLU, min-max normalisation) and a pre-trained clone.
* `proven`: the affine layer stays at its random initial weights, which makes
  it public; the output layer's objective is released once.
* `adlm_proven`: `AdaptiveLaplace` around the layers of `proven`: the same
  budget also pays for the relevance that scales the features.
* `dpa_published`: `keras_fm.models.DeepPrivateAutoencoder` as published, one
  encoder of `hidden` units, pre-trained, then fine-tuned.
* `dpa_proven`: the affine layer of `proven` becomes a `PrivateEncoder`: the
  same budget also pays for its moments.
* `functional_published`: `keras_fm.models.FunctionalNet` as published, all
  layers, sigmoid, ten rounds.
* `functional_proven`: the proven form, all layers, tanh, ten rounds.
* `dp_sgd_vectorized`, `dp_sgd_sequential`: all layers train by
  tensorflow-privacy's DP-SGD, in its two forms.
* `dp_sgd_head`: DP-SGD on the features that `proven` uses, output layer
  only: the rival feature for feature.

No hyper-parameter is chosen on the test part: DP-SGD's are chosen for each
epsilon on a validation split of the training part (the cost in privacy of
that choice is not charged to it), ours follow rules fixed in advance.
"""

import csv
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import statistics
import threading
import time

import keras
import numpy as np

from keras_fm import budget as budget_lib
from keras_fm import datasets
from keras_fm import features as features_lib
from keras_fm.baselines import dp_sgd
from keras_fm.callbacks import PrivateModel
from keras_fm.layers.perturbed_affine import PerturbedAffine
from keras_fm.layers.private_dense import PrivateDense
from keras_fm.layers.private_encoder import PrivateEncoder
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import (
    AdaptiveLaplace,
    DeepPrivateAutoencoder,
    FunctionalNet,
)

METHODS = (
    "non_private",
    "truncated",
    "published",
    "adlm_published",
    "proven",
    "adlm_proven",
    "dpa_published",
    "dpa_proven",
    "functional_published",
    "functional_proven",
    "dp_sgd_vectorized",
    "dp_sgd_sequential",
    "dp_sgd_head",
)
WITHOUT_EPSILON = ("non_private", "truncated")
_LABELS = {
    "non_private": "non-private",
    "truncated": "truncated (Taylor)",
    "published": "published (ILM), claimed",
    "adlm_published": "published (AdLM), claimed",
    "proven": "proven, one read",
    "adlm_proven": "proven, adaptive (AdLM)",
    "dpa_published": "published (dPA), claimed",
    "dpa_proven": "proven, auto-encoder (dPA)",
    "functional_published": "published (FunctionalNet), claimed",
    "functional_proven": "proven, FunctionalNet",
    "dp_sgd_vectorized": "DP-SGD, vectorized optimizer",
    "dp_sgd_sequential": "DP-SGD, DPSequential",
    "dp_sgd_head": "DP-SGD on proven's features",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared. Every field is public and fixed in advance.

    Args:
        dataset: name or .npz path, see `keras_fm.datasets.load`.
        features: public feature map, one of `keras_fm.features.FEATURES`.
        hidden: units of the affine layer; 0 leaves it out.
        methods: some of `METHODS`.
        epsilons: budgets to train at.
        delta: float in [0, 1); with 0 the DP-SGD methods are left out.
        neighbours: relation of proven and DP-SGD.
        seeds: int, repetitions with seeds 0, 1, ... for the initial weights.
            The noise is always fresh.
        epochs, batch_size, learning_rate: Adam on the exact, truncated and
            published losses.
        dp_sgd: tuple of `DPSGDConfig` keyword dicts to choose from on the
            validation split.
        train_records: int, use only the first so many training records; 0
            for all.

    Raises:
        ValueError: if a value is unknown or outside its range.
    """

    dataset: str = "digits"
    features: str = "pixels"
    hidden: int = 64
    methods: tuple = METHODS
    epsilons: tuple = (0.5, 2.0, 8.0)
    delta: float = 1e-5
    neighbours: str = "add_remove"
    seeds: int = 3
    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 3e-3
    dp_sgd: tuple = ()
    train_records: int = 0

    def __post_init__(self):
        unknown = set(self.methods) - set(METHODS)
        if unknown or not self.methods:
            raise ValueError(
                f"`methods` must be some of {METHODS}. Received: "
                f"methods={self.methods}"
            )
        features_lib.check(self.features)
        if not self.epsilons:
            raise ValueError("`epsilons` must name at least one budget.")
        for epsilon in self.epsilons:
            budget_lib.PrivacyBudget(epsilon, self.delta)
        budget_lib.Neighbours.of(self.neighbours)
        for name, least in (
            ("seeds", 1),
            ("epochs", 1),
            ("batch_size", 1),
            ("hidden", 0),
            ("train_records", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(
                    f"`{name}` must be at least {least}. Received: "
                    f"{name}={getattr(self, name)}"
                )

    def jobs(self):
        """All (method, epsilon, seed) to run; epsilon is None without."""
        for method in self.methods:
            if method.startswith("dp_sgd") and self.delta == 0:
                continue
            epsilons = (None,) if method in WITHOUT_EPSILON else self.epsilons
            yield from itertools.product((method,), epsilons, range(self.seeds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One training run."""

    method: str
    epsilon: float | None
    seed: int
    accuracy: float
    claimed: float | None
    proven: float
    delta: float | None
    neighbours: str
    seconds: float
    peak_mib: float
    statement: str = ""


class _Watch:
    """Seconds and peak resident memory above the start, of a `with` block.

    The peak is sampled every 10 ms from the operating system; where it does
    not tell (no /proc), it is NaN.
    """

    def __enter__(self):
        self._stop = threading.Event()
        self._start = self._peak = _resident_mib()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        self._begin = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._begin
        self._stop.set()
        self._thread.join()
        self._peak = max(self._peak, _resident_mib())
        self.peak_mib = self._peak - self._start

    def _sample(self):
        while not self._stop.wait(0.01):
            self._peak = max(self._peak, _resident_mib())


def _resident_mib():
    try:
        with open("/proc/self/statm") as f:
            pages = int(f.read().split()[1])
    except OSError:
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class _Trainer:
    """Trains one architecture on one split in every way."""

    def __init__(self, spec, train, test):
        self.spec = spec
        self.x, self.y = train
        self.x_test, self.y_test = test
        self.classes = (
            int(max(self.y.max(), self.y_test.max())) + 1
        )  # the classes of the public data set, not of a private one
        self._dp_sgd_choice, self._pretrained = {}, {}

    # The architecture ----------------------------------------------------

    def _affine(self, seed, kind=keras.layers.Dense, **kwargs):
        return kind(
            self.spec.hidden,
            activation="tanh",
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
            name="affine",
            **kwargs,
        )

    def _body(self, seed, **kwargs):
        if not self.spec.hidden:
            return []
        return [
            self._affine(seed, **kwargs),
            keras.layers.UnitNormalization(name="unit_norm"),
        ]

    def _head_initializer(self, seed):
        return keras.initializers.GlorotUniform(seed=1_000_000 + seed)

    def _model(self, seed, head=PrivateDense, **kwargs):
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.Input(self.x.shape[1:]),
                *self._body(seed, **kwargs),
                head(
                    self.classes,
                    kernel_initializer=self._head_initializer(seed),
                    name="output",
                ),
            ]
        )

    # One run -------------------------------------------------------------

    def run(self, method, epsilon, seed, log_dir=None):
        """Trains once and returns an `Outcome`."""
        if method.startswith("dp_sgd"):
            # The choice is made (and cached) outside the watch.
            self._choose_dp_sgd(method, epsilon)
            train = self._train_dp_sgd
        else:
            train = self._train_keras
        before = 0.0
        if method == "adlm_published":
            # One pre-training serves all budgets; each run counts its time.
            before = self._pretrain(seed)
        with _Watch() as watch:
            model, ledger, statement = train(method, epsilon, seed, log_dir)
        accuracy = self._accuracy(model, method, seed)
        private = ledger is not None
        claimed = ledger.claimed_epsilon() if private else None
        return Outcome(
            method=method,
            epsilon=epsilon,
            seed=seed,
            accuracy=accuracy,
            claimed=claimed,
            proven=ledger.epsilon() if private else math.inf,
            delta=ledger.budget.delta if private else None,
            neighbours=str(ledger.neighbours) if private else "",
            seconds=before + watch.seconds,
            peak_mib=watch.peak_mib,
            statement=statement,
        )

    def _accuracy(self, model, method, seed):
        x = self.x_test
        if method == "dp_sgd_head":
            x = self._frozen_features(seed)[1]
        return float(np.mean(model(x) == self.y_test))

    def _train_keras(self, method, epsilon, seed, log_dir):
        spec = self.spec
        # A FunctionalNet brings its own.
        functional = method.startswith("functional")
        loss = None if functional else TaylorCrossEntropy()
        callbacks, private, epochs = [], None, spec.epochs
        if method == "non_private":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model = self._model(seed, head=keras.layers.Dense)
        elif method == "truncated":
            model = self._model(seed)
        elif method == "published":
            model = self._model(seed, kind=PerturbedAffine)
            private = PrivateModel(
                epsilon, guarantee="published", batch_size=spec.batch_size
            )
        elif method == "adlm_published":
            model = self._published_adlm(seed)
            private = PrivateModel(
                epsilon,
                data=(self.x, self.y),
                batch_size=spec.batch_size,
                pretrained=self._pretrained[seed][0],
                **model.private_arguments,
            )
        elif method == "dpa_published":
            model = self._published_dpa(seed)
            private = PrivateModel(
                epsilon, data=(self.x, self.y), **model.private_arguments
            )
            model.pretrain(
                self.x,
                private,
                epochs=spec.epochs,
                batch_size=spec.batch_size,
                optimizer=keras.optimizers.Adam(spec.learning_rate),
            )
        elif method == "functional_published":
            model = self._functional_net(seed, published=True)
            private = PrivateModel(
                epsilon,
                data=(self.x, self.y),
                guarantee="published",
                lot="data",
            )
            epochs = 1
        else:
            if method == "proven":
                model = self._model(seed, trainable=False)
            elif method == "functional_proven":
                model = self._functional_net(seed)
            elif method == "dpa_proven":
                model = self._proven_dpa(seed)
            else:
                body = self._body(seed, trainable=False)
                model = self._adlm(
                    seed,
                    "proven",
                    top=keras.Sequential(body, name="body") if body else None,
                )
            private = PrivateModel(
                budget_lib.PrivacyBudget(epsilon, spec.delta),
                data=(self.x, self.y),
                neighbours=spec.neighbours,
            )
            # It starts at the optimum of the released objective.
            epochs = 1
        if private is not None:
            callbacks.append(private)
        if log_dir is not None:
            callbacks.append(keras.callbacks.TensorBoard(log_dir))
        model.compile(keras.optimizers.Adam(spec.learning_rate), loss)
        model.fit(
            self.x,
            self.y,
            batch_size=spec.batch_size,
            epochs=epochs,
            callbacks=callbacks,
            verbose=0,
        )

        def classify(x):
            return model.predict(x, batch_size=4096, verbose=0).argmax(axis=1)

        ledger = private.ledger if private else None
        return classify, ledger, private.report() if private else ""

    # AdLM ----------------------------------------------------------------

    def _adlm(self, seed, guarantee, **kwargs):
        keras.utils.set_random_seed(seed)
        return AdaptiveLaplace(
            self.x.shape[1:], self.classes, guarantee=guarantee, **kwargs
        )

    def _published_adlm(self, seed):
        return self._adlm(seed, "published", hidden=self.spec.hidden or 64)

    def _pretrain(self, seed):
        """Trains AdLM's first network if needed; returns its seconds."""
        if seed not in self._pretrained:
            spec, begin = self.spec, time.perf_counter()
            model = self._published_adlm(seed)
            model.compile(
                keras.optimizers.Adam(spec.learning_rate), TaylorCrossEntropy()
            )
            model.fit(
                self.x,
                self.y,
                batch_size=spec.batch_size,
                epochs=spec.epochs,
                verbose=0,
            )
            seconds = time.perf_counter() - begin
            self._pretrained[seed] = model, seconds
        return self._pretrained[seed][1]

    # dPA -----------------------------------------------------------------

    def _published_dpa(self, seed):
        keras.utils.set_random_seed(seed)
        # Public features are of unit length: each is in [-1, 1].
        return DeepPrivateAutoencoder(
            self.x.shape[1:],
            hidden=(self.spec.hidden or 64,),
            units=self.classes,
            guarantee="published",
            bounds=(-1.0, 1.0),
        )

    def _proven_dpa(self, seed):
        keras.utils.set_random_seed(seed)
        encoder = PrivateEncoder(
            min(self.spec.hidden or 64, self.x.shape[1]), name="encoder"
        )
        return keras.Sequential(
            [
                keras.Input(self.x.shape[1:]),
                encoder,
                keras.layers.Rescaling(2.0, offset=-1.0, name="centred"),
                keras.layers.UnitNormalization(name="unit_norm"),
                PrivateDense(
                    self.classes,
                    kernel_initializer=self._head_initializer(seed),
                    name="output",
                ),
            ]
        )

    # FunctionalNet -------------------------------------------------------

    def _functional_net(self, seed, published=False):
        """All layers, on features of norm 8; ten rounds."""
        layers = []
        if self.spec.hidden:
            affine = self._affine(seed)
            if published:
                affine.activation = keras.activations.sigmoid
            layers.append(affine)
        # What one class of many would learn first.
        rare = keras.initializers.Constant(-math.log(max(1, self.classes - 1)))
        layers.append(
            keras.layers.Dense(
                self.classes,
                kernel_initializer=self._head_initializer(seed),
                bias_initializer=rare,
                name="output",
            )
        )
        paper = {"curvature": "diagonal", "step_size": 1.0, "momentum": 0.0}
        return FunctionalNet(
            self.x.shape[1:],
            layers,
            rounds=10,
            below=[keras.layers.Rescaling(8.0)],
            **(paper if published else {}),
        )

    # DP-SGD --------------------------------------------------------------

    def _frozen_features(self, seed):
        """What the output layer of `proven` sees, for train and test."""
        body = keras.Sequential(
            [keras.Input(self.x.shape[1:]), *self._body(seed)]
        )
        if not body.layers:
            return self.x, self.x_test
        return tuple(
            body.predict(x, batch_size=4096, verbose=0)
            for x in (self.x, self.x_test)
        )

    def _dp_sgd_model(self, method, seed, inputs):
        head = keras.layers.Dense(
            self.classes, kernel_initializer=self._head_initializer(seed)
        )
        body = [] if method == "dp_sgd_head" else self._body(seed)
        return keras.Sequential([keras.Input(inputs), *body, head])

    def _configs(self, method):
        form = "vectorized" if method == "dp_sgd_vectorized" else "sequential"
        for config in self.spec.dp_sgd or default_dp_sgd(len(self.x)):
            yield dp_sgd.DPSGDConfig(form=form, **config)

    def _choose_dp_sgd(self, method, epsilon):
        """The config with the best accuracy on the last fifth of the
        training part, for one epsilon.

        The two forms are the same mechanism: one choice serves both.
        """
        kind = "head" if method == "dp_sgd_head" else "all"
        if (kind, epsilon) not in self._dp_sgd_choice:
            x = self.x if kind == "all" else self._frozen_features(0)[0]
            cut = len(x) * 4 // 5
            scores = []
            for config in self._configs("dp_sgd_sequential"):
                rival = self._fit_dp_sgd(
                    method, config, epsilon, 0, x[:cut], self.y[:cut]
                )
                score = rival.evaluate(x[cut:], self.y[cut:])["accuracy"]
                scores.append(score)
            self._dp_sgd_choice[kind, epsilon] = int(np.argmax(scores))
        return list(self._configs(method))[self._dp_sgd_choice[kind, epsilon]]

    def _fit_dp_sgd(self, method, config, epsilon, seed, x, y):
        rival = dp_sgd.DPSGDClassifier(
            self._dp_sgd_model(method, seed, x.shape[1:]),
            config,
            epsilon=epsilon,
            delta=self.spec.delta,
            neighbours=self.spec.neighbours,
        )
        return rival.fit(x, y)

    def _train_dp_sgd(self, method, epsilon, seed, log_dir):
        config = self._choose_dp_sgd(method, epsilon)
        x = self.x
        if method == "dp_sgd_head":
            x = self._frozen_features(seed)[0]
        rival = self._fit_dp_sgd(method, config, epsilon, seed, x, self.y)

        def classify(x):
            return rival.predict(x).argmax(axis=1)

        return classify, rival.ledger, rival.ledger.statement()


def default_dp_sgd(n):
    """The grid DP-SGD is chosen from, per epsilon.

    Large Poisson batches, a small clip and momentum are its best published
    practice on features (Tramer and Boneh 2021); the rate spans what norms
    of features and noise ask for.
    """
    return tuple(
        {
            "learning_rate": rate,
            "l2_norm_clip": 0.1,
            "batch_size": max(1, n // 4),
            "sampling": "poisson",
            "momentum": 0.9,
            "steps": 100,
        }
        for rate in (4.0, 16.0, 64.0)
    )


def run(spec, out=None, progress=True):
    """Runs a comparison and writes what it found.

    Args:
        spec: a `Comparison`.
        out: folder for `runs.csv`, `summary.json`, `accuracy.png`,
            `table.txt` and `tensorboard/`; `None` writes nothing.
        progress: whether a progress bar is shown.

    Returns:
        list of `Outcome`.
    """
    loaded = datasets.load(spec.dataset)
    if not isinstance(loaded, tuple):
        raise ValueError(
            f"{spec.dataset!r} is no data set of images. Behaviour prediction "
            "is compared by benchmarks/behavior.py; see docs/dpa.md."
        )
    train, test = loaded
    if spec.train_records:
        train = tuple(a[: spec.train_records] for a in train)
    with _Watch() as watch:
        body = features_lib.build(spec.features, train[0].shape[1:])
        x = features_lib.extract(body, train[0])
        x_test = features_lib.extract(body, test[0])
    trainer = _Trainer(spec, (x, train[1]), (x_test, test[1]))
    jobs = list(spec.jobs())
    bar = keras.utils.Progbar(len(jobs), unit_name="run") if progress else None
    outcomes = []
    for index, (method, epsilon, seed) in enumerate(jobs):
        log_dir = None
        logs = out and seed == 0 and _can_write_logs()
        if logs and not method.startswith("dp_sgd"):
            log_dir = _run_folder(out, method, epsilon)
        outcomes.append(trainer.run(method, epsilon, seed, log_dir))
        if bar:
            bar.update(index + 1, [("accuracy", outcomes[-1].accuracy)])
    if out:
        write(spec, outcomes, out, feature_seconds=watch.seconds)
    return outcomes


def summarise(outcomes):
    """Means and spreads over seeds, one dict per method and epsilon."""
    rows = []
    key = lambda o: (METHODS.index(o.method), o.epsilon or 0.0)  # noqa: E731
    for _, group in itertools.groupby(sorted(outcomes, key=key), key=key):
        group = list(group)
        first = group[0]
        accuracies = [o.accuracy for o in group]
        rows.append(
            {
                "method": first.method,
                "epsilon": first.epsilon,
                "accuracy": statistics.fmean(accuracies),
                "spread": (
                    statistics.stdev(accuracies) if len(group) > 1 else 0.0
                ),
                "claimed": first.claimed,
                "proven": max(o.proven for o in group),
                "delta": first.delta,
                "neighbours": first.neighbours,
                "seconds": statistics.median(o.seconds for o in group),
                "peak_mib": max(o.peak_mib for o in group),
                "seeds": len(group),
            }
        )
    return rows


def table(outcomes):
    """The comparison as text, one line per method and epsilon."""
    head = (
        f"{'method':34} {'epsilon':>7} {'accuracy %':>13} {'claimed':>8} "
        f"{'proven':>8} {'delta':>7} {'neighbours':>11} {'seconds':>8} "
        f"{'MiB':>6}"
    )
    lines = [head, "-" * len(head)]
    for r in summarise(outcomes):
        accuracy = f"{100 * r['accuracy']:.1f} +- {100 * r['spread']:.1f}"
        lines.append(
            f"{_LABELS[r['method']]:34} {_number(r['epsilon']):>7} "
            f"{accuracy:>13} {_number(r['claimed']):>8} "
            f"{_number(r['proven']):>8} {_number(r['delta']):>7} "
            f"{r['neighbours'] or '-':>11} {r['seconds']:>8.1f} "
            f"{r['peak_mib']:>6.0f}"
        )
    return "\n".join(lines)


def _number(value):
    return "-" if value is None else f"{value:.3g}"


def _run_folder(out, method, epsilon):
    name = method if epsilon is None else f"{method}_epsilon_{epsilon:g}"
    return os.path.join(out, "tensorboard", name)


def write(spec, outcomes, out, feature_seconds):
    """Writes table, CSV, JSON, plot and TensorBoard logs to `out`."""
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "table.txt"), "w") as f:
        f.write(table(outcomes) + "\n")
    fields = [f.name for f in dataclasses.fields(Outcome)]
    fields.remove("statement")
    with open(os.path.join(out, "runs.csv"), "w", newline="") as f:
        writer = csv.DictWriter(f, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(o) for o in outcomes)
    summary = {
        "spec": dataclasses.asdict(spec),
        "feature_seconds": feature_seconds,
        "rows": summarise(outcomes),
        "statements": {
            f"{o.method} {o.epsilon:g}": o.statement
            for o in outcomes
            if o.statement and o.seed == 0
        },
    }
    with open(os.path.join(out, "summary.json"), "w") as f:
        json.dump(_finite(summary), f, indent=1)
    plot_path = os.path.join(out, "accuracy.png")
    plot(spec, outcomes, plot_path)
    _write_tensorboard(outcomes, out, plot_path)


def _finite(value):
    """JSON has no infinity: it is written as the string "inf"."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def plot(spec, outcomes, path):
    """Accuracy against epsilon as PNG: solid where proven, dotted where
    only claimed, horizontal without privacy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    rows = summarise(outcomes)
    for index, method in enumerate(m for m in METHODS if m in spec.methods):
        points = [r for r in rows if r["method"] == method]
        if not points:
            continue
        color, label = f"C{index}", _LABELS[method]
        if method in WITHOUT_EPSILON:
            axes.axhline(
                100 * points[0]["accuracy"],
                color=color,
                linestyle="--",
                linewidth=1,
                label=f"{label} (no privacy)",
            )
            continue
        proven = all(math.isfinite(r["proven"]) for r in points)
        if points[0]["neighbours"] != spec.neighbours:
            label += f" ({points[0]['neighbours']})"
        axes.errorbar(
            [r["epsilon"] for r in points],
            [100 * r["accuracy"] for r in points],
            yerr=[100 * r["spread"] for r in points],
            color=color,
            marker="o" if proven else "x",
            linestyle="-" if proven else ":",
            capsize=3,
            label=label,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(spec.epsilons, [f"{e:g}" for e in spec.epsilons])
    axes.set_xlabel(f"epsilon (delta = {spec.delta:g}, {spec.neighbours})")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(
        f"{os.path.basename(spec.dataset)}: mean and standard deviation of "
        f"{spec.seeds} runs; dotted = claimed, not proven"
    )
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=150)


def _can_write_logs():
    """TensorBoard logs are written by TensorFlow, on every backend."""
    return all(map(importlib.util.find_spec, ("tensorboard", "tensorflow")))


def _write_tensorboard(outcomes, out, plot_path):
    if not _can_write_logs():
        return
    import tensorflow as tf

    for row in summarise(outcomes):
        folder = _run_folder(out, row["method"], row["epsilon"])
        writer = tf.summary.create_file_writer(folder)
        with writer.as_default():
            for name in ("accuracy", "claimed", "proven", "seconds"):
                value = row[name]
                if value is not None and math.isfinite(value):
                    tf.summary.scalar(f"comparison/{name}", value, step=0)
            for o in outcomes:
                same = (o.method, o.epsilon) == (row["method"], row["epsilon"])
                if same and o.statement and o.seed == 0:
                    text = f"```\n{o.statement}\n```"
                    tf.summary.text("privacy/statement", text, step=0)
        writer.close()
    writer = tf.summary.create_file_writer(os.path.join(out, "tensorboard"))
    with writer.as_default():
        with open(plot_path, "rb") as f:
            image = tf.io.decode_png(f.read(), channels=3)
        tf.summary.image("comparison/accuracy", image[None], step=0)
        text = f"```\n{table(outcomes)}\n```"
        tf.summary.text("comparison/table", text, step=0)
    writer.close()
