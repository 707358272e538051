"""The command line: `keras-fm compare`, `compose`, `audit`, what they teach."""

import logging
import sys

from absl import flags

_USAGE = """keras-fm: private Keras models by the functional mechanism.

Commands:
  keras-fm compare    train one architecture in every way, side by side:
                      non-private, truncated, published, proven,
                      adaptive (AdLM), auto-encoder (dPA), and
                      tensorflow-privacy's DP-SGD; print one table
  keras-fm compose    what many private reads cost together, by every
                      composition theorem: basic, advanced, optimal, with
                      sampling, moments and privacy loss distributions
  keras-fm audit      what a training really reveals: canaries, a control
                      without privacy, a lower bound on epsilon, a verdict
  keras-fm --version  print the version

`keras-fm COMMAND --help` explains every flag.
"""

_COMPARE = """Trains one architecture in every way and prints one table.

  keras-fm compare
      the digits embedded in scikit-learn, offline, in about four minutes
  keras-fm compare --dataset=mnist --features=scattering_strokes --hidden=0 \\
      --methods=non_private,truncated,proven,dp_sgd_head
      MNIST on public scattering features with a map fitted on drawn strokes
  keras-fm compare --epsilons=0.5 --delta=0 --methods=proven
      pure differential privacy

How to read the table:
  accuracy    test part, mean and standard deviation over seeds
  claimed     the epsilon that the method's paper asserts (not a guarantee)
  proven      the epsilon composed from the ledger of what was really read;
              inf where no valid proof exists
  neighbours  the relation the numbers refer to; compare only equal ones
  seconds     median time of one training, features excluded
  MiB         peak memory above the start of the training

Choices: ours follow rules fixed in advance; DP-SGD's rate is chosen for each
epsilon on a fifth of the training part, without charge to it.
Noise is fresh in every run, so numbers differ a little between runs.
"""


def _define_compare(values):
    def define(function, *args, **kwargs):
        function(*args, flag_values=values, **kwargs)

    define(
        flags.DEFINE_string,
        "dataset",
        "digits",
        "digits, mnist, fashion_mnist, usps, cifar10, or the path of an "
        ".npz file with x_train, y_train, x_test, y_test. Files are looked "
        "up in the folder KERAS_FM_DATA first.",
    )
    define(
        flags.DEFINE_string,
        "features",
        "pixels",
        "Public feature map under every method: pixels, scattering (wavelet "
        "scattering, random projection) or scattering_strokes (scattering, "
        "then a map fitted on drawn pen strokes, no private image).",
    )
    define(
        flags.DEFINE_integer,
        "hidden",
        64,
        "Units of the affine layer between features and output; 0 leaves "
        "it out.",
    )
    define(
        flags.DEFINE_list,
        "methods",
        None,
        "Comma-separated: non_private, truncated, published, adlm_published, "
        "proven, adlm_proven, dpa_published, dpa_proven, "
        "functional_published, functional_proven, dp_sgd_vectorized, "
        "dp_sgd_sequential, dp_sgd_head. Default: all (without the DP-SGD "
        "ones where tensorflow-privacy is missing).",
    )
    define(flags.DEFINE_list, "epsilons", ["0.5", "2", "8"], "Privacy budgets.")
    define(
        flags.DEFINE_float,
        "delta",
        1e-5,
        "Failure probability, far below one over the number of records; 0 "
        "asks for pure differential privacy.",
    )
    define(
        flags.DEFINE_enum,
        "neighbours",
        "add_remove",
        ["add_remove", "replace_one"],
        "Neighbouring relation of the proven form and of DP-SGD.",
    )
    define(flags.DEFINE_integer, "seeds", 3, "Repetitions.")
    define(flags.DEFINE_integer, "epochs", 40, "Epochs of the other methods.")
    define(flags.DEFINE_integer, "batch_size", 64, "Their batch size.")
    define(
        flags.DEFINE_integer,
        "train_records",
        0,
        "Use only the first so many training records; 0 for all.",
    )
    define(
        flags.DEFINE_string,
        "out",
        "runs/compare",
        "Folder for table.txt, runs.csv, summary.json, accuracy.png and "
        "tensorboard/. Empty writes nothing.",
    )
    define(flags.DEFINE_bool, "progress", True, "Show a progress bar.")


def _has_dp_sgd():
    import importlib.util

    return all(
        importlib.util.find_spec(name)
        for name in ("tensorflow_privacy", "tf_keras")
    )


def _parse(command, define, words, argv):
    """The flags of a command, or `None` once its help was shown.

    Raises:
        flags.Error: if they cannot be read.
    """
    values = flags.FlagValues()
    define(values)
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    rest = values([f"keras-fm {command}", *argv])[1:]
    if rest:
        raise flags.Error(f"unexpected argument {rest[0]!r}")
    if values.help:
        sys.stdout.write(words + "\nFlags:\n" + values.get_help() + "\n")
        return None
    return values


def compare(argv):
    """Runs `keras-fm compare`; returns the exit status."""
    try:
        values = _parse("compare", _define_compare, _COMPARE, argv)
        if values is None:
            return 0
        epsilons = tuple(float(e) for e in values.epsilons)
    except (flags.Error, ValueError) as e:
        sys.stderr.write(f"keras-fm compare: {e}\nTry --help.\n")
        return 2
    # Heavy imports only once the command line is right.
    # Every run builds its own model, which TensorFlow reports as retracing.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    from keras_fm import compare as compare_lib

    methods = values.methods
    if methods is None:
        methods = [
            m
            for m in compare_lib.METHODS
            if _has_dp_sgd() or not m.startswith("dp_sgd")
        ]
    try:
        spec = compare_lib.Comparison(
            dataset=values.dataset,
            features=values.features,
            hidden=values.hidden,
            methods=tuple(methods),
            epsilons=epsilons,
            delta=values.delta,
            neighbours=values.neighbours,
            seeds=values.seeds,
            epochs=values.epochs,
            batch_size=values.batch_size,
            train_records=values.train_records,
        )
        outcomes = compare_lib.run(
            spec, out=values.out or None, progress=values.progress
        )
    except (ValueError, ImportError) as e:
        sys.stderr.write(f"keras-fm compare: {e}\n")
        return 2
    sys.stdout.write("\n" + compare_lib.table(outcomes) + "\n")
    if values.out:
        sys.stdout.write(
            f"\nWritten to {values.out}: table.txt, runs.csv, summary.json, "
            f"accuracy.png; `tensorboard --logdir={values.out}/tensorboard`\n"
        )
    return 0


_COMPOSE = """What many private reads cost, by every composition theorem.

  keras-fm compose
      10,000 steps of DP-SGD: noise multiplier 4, samples of 1 %
  keras-fm compose --mechanism=pure --epsilon=0.1 --count=1000
      any 0.1-DP mechanism, a thousand times
  keras-fm compose --plan=plan.toml
      several stages; the file holds tables [[stages]], whose entries are
      named as the flags mechanism, noise_multiplier, epsilon, delta,
      sampling_rate and count; a .json file holds {"stages": [{...}]}
  keras-fm compose --ledger=ledger.json
      what a model's ledger was charged with

How to read the table:
  epsilon     at the delta beside it
  bound       a proven upper bound; the smallest of them is the one to use
  as printed  a formula of a survey that drops terms: not a guarantee
  sampled_*   each step first amplified by sampling; the rows without it
              ignore sampling, which is valid but wasteful
  n/a         the method does not apply, and why

docs/composition.md names the theorems.
"""

_STAGE_FLAGS = (
    "mechanism",
    "noise_multiplier",
    "epsilon",
    "step_delta",
    "sampling_rate",
    "count",
)


def _define_compose(values):
    def define(function, *args, **kwargs):
        function(*args, flag_values=values, **kwargs)

    define(
        flags.DEFINE_string,
        "plan",
        None,
        "A .json or .toml file with the stages of a plan.",
    )
    define(
        flags.DEFINE_string,
        "ledger",
        None,
        "A ledger that a model saved (`Ledger.save`).",
    )
    define(
        flags.DEFINE_enum,
        "mechanism",
        "gaussian",
        ["gaussian", "laplace", "pure", "approximate"],
        "Plan of one stage: its mechanism. pure is any epsilon-DP one, "
        "approximate any (epsilon, delta)-DP one.",
    )
    define(
        flags.DEFINE_float,
        "noise_multiplier",
        None,
        "Standard deviation (gaussian; default 4) or scale (laplace) of the "
        "noise over the sensitivity.",
    )
    define(flags.DEFINE_float, "epsilon", None, "Epsilon of one run.")
    define(
        flags.DEFINE_float, "step_delta", None, "Delta of one run: approximate."
    )
    define(
        flags.DEFINE_float,
        "sampling_rate",
        None,
        "Probability that a record takes part in a run (Poisson sampling). "
        "Default: 0.01 for the default plan, otherwise 1.",
    )
    define(flags.DEFINE_integer, "count", 10000, "Number of runs.")
    define(
        flags.DEFINE_enum,
        "neighbours",
        None,
        ["add_remove", "replace_one"],
        "Neighbouring relation of a plan of one stage (default add_remove). "
        "Noise is relative to the sensitivity under it; sampling needs "
        "add_remove.",
    )
    define(
        flags.DEFINE_float,
        "delta",
        None,
        "Total delta of every bound; 0 for pure plans. Default: that of the "
        "ledger, otherwise 1e-5.",
    )
    define(
        flags.DEFINE_list,
        "methods",
        None,
        "Comma-separated: basic, advanced, kairouz, optimal, the same with "
        "sampled_ before them, moments, renyi, pld, survey_basic, "
        "survey_advanced, survey_sampling. Default: all.",
    )
    define(
        flags.DEFINE_list,
        "counts",
        None,
        "Comma-separated numbers of runs for the plot (of the whole plan, "
        "where it has several stages). Default: 1, 2, 5, 10, ...",
    )
    define(
        flags.DEFINE_string,
        "out",
        "runs/compose",
        "Folder for table.txt, composition.csv and composition.png. Empty "
        "writes nothing.",
    )


def _plan_and_delta(values, composition):
    """The plan that the flags name, and the total delta."""
    given = [
        name for name in (*_STAGE_FLAGS, "neighbours") if values[name].present
    ]
    files = [name for name in ("plan", "ledger") if values[name].value]
    if len(files) + bool(given) > 1:
        names = ", ".join(f"--{name}" for name in files + given)
        raise ValueError(
            f"give a plan, a ledger, or the flags of one stage, not {names}."
        )
    delta = 1e-5 if values.delta is None else values.delta
    if values.plan:
        return composition.Plan.load(values.plan), delta
    if values.ledger:
        from keras_fm.ledger import Ledger

        ledger = Ledger.load(values.ledger)
        if values.delta is None:
            delta = ledger.budget.delta
        return composition.Plan.of_ledger(ledger), delta
    noise, rate = values.noise_multiplier, values.sampling_rate
    if set(given) <= {"count"}:
        noise, rate = 4.0, 0.01
    elif noise is None and values.mechanism == "gaussian":
        noise = 4.0
    stage = composition.Stage(
        mechanism=values.mechanism,
        noise_multiplier=noise,
        epsilon=values.epsilon,
        delta=values.step_delta,
        sampling_rate=1.0 if rate is None else rate,
        count=values.count,
    )
    return composition.Plan([stage], values.neighbours or "add_remove"), delta


def compose(argv):
    """Runs `keras-fm compose`; returns the exit status."""
    try:
        values = _parse("compose", _define_compose, _COMPOSE, argv)
        if values is None:
            return 0
        counts = values.counts and [_whole(c) for c in values.counts]
    except (flags.Error, ValueError) as e:
        sys.stderr.write(f"keras-fm compose: {e}\nTry --help.\n")
        return 2
    # dp_accounting warns of every order that it leaves out.
    logging.getLogger("absl").setLevel(logging.ERROR)
    # Heavy imports only once the command line is right.
    from keras_fm import composition

    try:
        methods = composition.check_methods(values.methods)
        plan, delta = _plan_and_delta(values, composition)
        composed = composition.compose(plan, delta, methods)
        text = composition.table(composed)
        sys.stdout.write(f"{composition.title(plan, delta)}\n\n{text}\n")
        if values.out:
            by_count = composition.series(plan, delta, counts, methods)
            composition.write(plan, delta, composed, by_count, values.out)
    except (ValueError, OSError, OverflowError, RecursionError) as e:
        sys.stderr.write(f"keras-fm compose: {e}\n")
        return 2
    if values.out:
        sys.stdout.write(
            f"\nWritten to {values.out}: table.txt, composition.csv, "
            "composition.png\n"
        )
    return 0


def _whole(text):
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            "`counts` must be whole numbers, separated by commas. Received: "
            f"{text!r}"
        ) from None


_AUDIT = """Plants canaries, trains once for each seed, guesses their labels.

  keras-fm audit
      the published ILM form with batch normalisation at claimed epsilon 0.3,
      on the digits embedded in scikit-learn
  keras-fm audit --model=head --guarantee=proven --epsilon=1
      the proven output layer on frozen random features
  keras-fm audit --model=dpa --dataset=mnist --train_records=2500
      an auto-encoder; MNIST is downloaded, or read from KERAS_FM_DATA

How to read the report:
  lower bound  with 95 % confidence the training has at least this epsilon
  control      the same for the same network trained without privacy
  ceiling      the bound if every guess were right
  verdict      violated at 95%: the bound is above the stated epsilon
               not refuted: it is not, and the control's is; no proof
               inconclusive: no power: neither is; says nothing

docs/audit.md explains what an audit can and cannot show. Your own training
is audited by the function keras_fm.audit.
"""


def _define_audit(values):
    def define(function, *args, **kwargs):
        function(*args, flag_values=values, **kwargs)

    define(
        flags.DEFINE_enum,
        "model",
        "ilm",
        ["ilm", "head", "dpa", "dpmac", "functional"],
        "ilm: PerturbedAffine, batch normalisation, 25 units, PrivateDense "
        "(published); head: PrivateDense on a trained (published) or frozen "
        "layer (proven); dpa: DeepPrivateAutoencoder; dpmac: DPMAC; "
        "functional: FunctionalNet.",
    )
    define(
        flags.DEFINE_enum,
        "guarantee",
        "published",
        ["published", "proven"],
        "Which form of the model.",
    )
    define(
        flags.DEFINE_string,
        "dataset",
        "digits",
        "digits, mnist, fashion_mnist, usps, cifar10, or the path of an "
        ".npz file with x_train, y_train, x_test, y_test.",
    )
    define(
        flags.DEFINE_integer,
        "train_records",
        0,
        "Use only the first so many training records; 0 for all.",
    )
    define(flags.DEFINE_float, "epsilon", 0.3, "What is claimed or spent.")
    define(
        flags.DEFINE_float,
        "delta",
        1e-5,
        "Of proven forms and of dpmac; the other published claims are pure.",
    )
    define(
        flags.DEFINE_integer,
        "canaries",
        None,
        "Number of canaries. Default: half of the records, at most 1000.",
    )
    define(
        flags.DEFINE_enum,
        "design",
        "swap",
        ["swap", "include"],
        "swap: each canary takes one of two labels, for replace_one; "
        "include: each is in or out, for add_remove.",
    )
    define(
        flags.DEFINE_enum,
        "kind",
        "labels",
        ["labels", "noise", "unit"],
        "Canaries: records with wrong labels, uniform noise, single pixels.",
    )
    define(flags.DEFINE_enum, "score", "loss", ["loss", "margin"], "Attack.")
    define(flags.DEFINE_integer, "seeds", 3, "Audits, with seeds 0, 1, ...")
    define(
        flags.DEFINE_integer,
        "epochs",
        600,
        "Of a training that sees records in every step. Short ones show "
        "nothing.",
    )
    define(flags.DEFINE_integer, "control_epochs", 600, "Of the control.")
    define(
        flags.DEFINE_integer,
        "batch_size",
        0,
        "0: all records (dpmac: a fourth of them).",
    )
    define(flags.DEFINE_float, "learning_rate", 3e-3, "Of Adam.")
    define(flags.DEFINE_integer, "hidden", 64, "Units of the first layer.")
    define(
        flags.DEFINE_enum,
        "normalization",
        "batch",
        ["batch", "minmax", "none"],
        "Of ilm, after its first layer.",
    )
    define(
        flags.DEFINE_enum,
        "noise",
        "once",
        ["once", "per_step"],
        "Of ilm: once (the paper) or per_step (the authors' code).",
    )
    define(
        flags.DEFINE_string,
        "out",
        "runs/audit",
        "Folder for audit.json, audit.txt and audit.png. Empty writes nothing.",
    )
    define(flags.DEFINE_bool, "progress", True, "Show a progress bar.")


_SUBJECT_FLAGS = (
    "model",
    "guarantee",
    "epsilon",
    "delta",
    "hidden",
    "epochs",
    "control_epochs",
    "batch_size",
    "learning_rate",
    "normalization",
    "noise",
)


def audit(argv):
    """Runs `keras-fm audit`; returns the exit status."""
    try:
        values = _parse("audit", _define_audit, _AUDIT, argv)
        if values is None:
            return 0
    except (flags.Error, ValueError) as e:
        sys.stderr.write(f"keras-fm audit: {e}\nTry --help.\n")
        return 2
    # Heavy imports only once the command line is right.
    from keras_fm import audit_subjects

    try:
        report = audit_subjects.run(
            audit_subjects.Subject(
                **{name: values[name].value for name in _SUBJECT_FLAGS}
            ),
            values.dataset,
            train_records=values.train_records,
            canaries=values.canaries,
            design=values.design,
            kind=values.kind,
            score=values.score,
            seeds=tuple(range(values.seeds)),
            out=values.out or None,
            progress=values.progress,
        )
    except (ValueError, ImportError) as e:
        sys.stderr.write(f"keras-fm audit: {e}\n")
        return 2
    sys.stdout.write("\n" + report.text() + "\n")
    if values.out:
        sys.stdout.write(
            f"\nWritten to {values.out}: audit.txt, audit.json, audit.png\n"
        )
    return 0


_COMMANDS = {"compare": compare, "compose": compose, "audit": audit}


def main(argv=None):
    """Entry point of the `keras-fm` command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["--version"]:
        from keras_fm.version import __version__

        sys.stdout.write(f"keras-fm {__version__}\n")
        return 0
    if argv and argv[0] in _COMMANDS:
        return _COMMANDS[argv[0]](argv[1:])
    asked = not argv or argv[0] in ("--help", "-h", "help")
    (sys.stdout if asked else sys.stderr).write(_USAGE)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
