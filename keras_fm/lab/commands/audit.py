"""`keras-fm audit`: what a training really reveals."""

import sys

from absl import flags

from keras_fm.lab import known
from keras_fm.lab.commands import command_line
from keras_fm.lab.engine import folder

NAME = "audit"
SUMMARY = "canaries, a control, a lower bound on epsilon, a verdict"

WORDS = """Plants canaries, trains once for each seed, guesses their labels.

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


def define(values):
    """Defines the flags in `values`."""

    flags.DEFINE_enum(
        "model",
        "ilm",
        ["ilm", "head", "adlm", "dpa", "pcdbn", "dpmac", "functional"],
        "ilm: PerturbedAffine, batch normalisation, 25 units, PrivateDense "
        "(published); head: PrivateDense on a trained (published) or frozen "
        "layer (proven); adlm: AdaptiveLaplace; dpa: DeepPrivateAutoencoder; "
        "pcdbn: PrivateCDBN; dpmac: DPMAC; functional: FunctionalNet.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "guarantee",
        "published",
        ["published", "proven"],
        "Which form of the model.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "dataset",
        "digits",
        "digits, mnist, fashion_mnist, usps, cifar10, or the path of an "
        ".npz file with x_train, y_train, x_test, y_test.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "train_records",
        0,
        "Use only the first so many training records; 0 for all.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "epsilon", 0.3, "What is claimed or spent.", flag_values=values
    )
    flags.DEFINE_float(
        "delta",
        1e-5,
        "Of proven forms and of dpmac; the other published claims are pure.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "canaries",
        None,
        "Number of canaries. Default: half of the records, at most 1000.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "design",
        "swap",
        ["swap", "include"],
        "swap: each canary takes one of two labels, for replace_one; "
        "include: each is in or out, for add_remove.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "kind",
        "labels",
        ["labels", "noise", "unit"],
        "Canaries: records with wrong labels, uniform noise, single pixels.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "score",
        "loss",
        ["loss", "margin", "gradient"],
        "Attack. gradient (white-box) needs weights that records move: not "
        "those of adlm and functional, published, nor of releases.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "seeds", 3, "Audits, with seeds 0, 1, ...", flag_values=values
    )
    flags.DEFINE_integer(
        "epochs",
        600,
        "Of a training that sees records in every step. Short ones show "
        "nothing.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "control_epochs", 600, "Of the control.", flag_values=values
    )
    flags.DEFINE_integer(
        "batch_size",
        0,
        "0: all records (dpmac: a fourth of them).",
        flag_values=values,
    )
    flags.DEFINE_float("learning_rate", 3e-3, "Of Adam.", flag_values=values)
    flags.DEFINE_integer(
        "hidden", 64, "Units of the first layer.", flag_values=values
    )
    flags.DEFINE_enum(
        "normalization",
        "batch",
        ["batch", "minmax", "none"],
        "Of ilm, after its first layer.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "noise",
        "once",
        ["once", "per_step"],
        "Of ilm: once (the paper) or per_step (the authors' code).",
        flag_values=values,
    )
    flags.DEFINE_string(
        "out",
        "runs/audit",
        "Folder for audit.json, audit.txt and audit.png. Empty writes nothing.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "tensorboard",
        None,
        "TensorBoard folder for the report as scalars, text and plot.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "progress", True, "Show a progress bar.", flag_values=values
    )


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


def _subject(values):
    return {name: values[name].value for name in _SUBJECT_FLAGS}


def check(values, rest):
    """Refuses what no run could repair."""
    del rest
    from keras_fm.kernel import checks

    known.check_dataset(values.dataset)
    known.check_audited(_subject(values))
    checks.count("seeds", values.seeds)
    checks.natural("train_records", values.train_records)
    if values.canaries is not None:
        checks.count("canaries", values.canaries)
    known.check_attack(
        values.model, values.guarantee, values.design, values.score
    )
    folder.check(values.out)
    folder.check(values.tensorboard)


def run(values, rest):
    """Runs the command; returns the exit status."""
    del rest
    # Heavy imports only once the command line is right.
    from keras_fm.lab import audits as audit_subjects

    report = audit_subjects.run(
        audit_subjects.Subject(**_subject(values)),
        values.dataset,
        train_records=values.train_records,
        canaries=values.canaries,
        design=values.design,
        kind=values.kind,
        score=values.score,
        seeds=tuple(range(values.seeds)),
        out=values.out or None,
        tensorboard=values.tensorboard or None,
        progress=values.progress,
        command=command_line.of(NAME, values),
    )
    sys.stdout.write("\n" + report.text() + "\n")
    if values.out:
        sys.stdout.write(
            f"\nWritten to {values.out}: audit.txt, audit.json, audit.png\n"
        )
    if values.tensorboard:
        sys.stdout.write(
            f"Shown by: tensorboard --logdir={values.tensorboard}\n"
        )
    return 0
