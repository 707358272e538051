"""`keras-fm audit`: what a training really reveals."""

import shlex
import sys

from keras_fm.lab import known
from keras_fm.lab.commands import command_line

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
  keras-fm audit --fit=train.py:fit --control=train.py:plain \
      --dataset=train.py:data --classes=10
      a training of your own: fit(x, y) returns a Keras model and its ledger,
      or --epsilon, --delta and --neighbours say what is claimed

How to read the report:
  lower bound  with 95 % confidence the training has at least this epsilon
  control      the same for the same network trained without privacy
  ceiling      the bound if every guess were right
  verdict      violated at 95%: the bound is above the stated epsilon
               not refuted: it is not, and the control's is; no proof
               inconclusive: no power: neither is; shows nothing

docs/audit.md explains what an audit can and cannot show. keras_fm.audit is
the same as a function.
"""


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.enum(
        "model",
        "ilm",
        list(known.AUDITED),
        "ilm: PerturbedAffine, batch normalisation, 25 units, PrivateDense "
        "(published); head: PrivateDense on a trained (published) or frozen "
        "layer (proven); adlm: AdaptiveLaplace; dpa: DeepPrivateAutoencoder; "
        "dpah: BehaviorAutoencoder; pcdbn: PrivateCDBN, pcdbn_te and pcdbn_pw "
        "(published) with other polynomials; dpmac: DPMAC; functional: "
        "FunctionalNet; dp_sgd: tensorflow-privacy's DP-SGD; jax_privacy: that "
        "of jax-privacy, which needs KERAS_BACKEND=jax.",
    )
    flag.enum(
        "guarantee",
        "published",
        ["published", "proven"],
        "Which form of the model.",
    )
    flag.string(
        "fit",
        None,
        "Instead of --model: a function of yours, path/to/script.py:function. "
        "It is given arrays (x, y), trains once and returns a Keras model (or "
        "a function from x to logits), or (model, ledger). The script is "
        "imported.",
    )
    flag.string(
        "control",
        None,
        "With --fit: the same training without privacy, "
        "path/to/script.py:function.",
    )
    flag.string(
        "dataset",
        "digits",
        f"{', '.join(known.IMAGES)}, or the path of an "
        ".npz file with x_train, y_train, x_test, y_test. With --fit also "
        "path/to/script.py:function, without arguments, which returns arrays "
        "(x, y), or x.",
    )
    flag.integer(
        "classes",
        None,
        "With --fit: the public number of classes of a script's records.",
    )
    flag.integer(
        "train_records",
        0,
        "Use only the first so many training records; 0 for all.",
    )
    flag.float(
        "epsilon",
        0.3,
        "The epsilon that is claimed or spent. With --fit, default: the "
        "ledger's.",
    )
    flag.float(
        "delta",
        1e-5,
        "Of proven forms, of dpmac and of DP-SGD; the other published claims "
        "are pure. With --fit, beside --epsilon.",
    )
    flag.enum(
        "neighbours",
        None,
        ["add_remove", "replace_one", "replace_label"],
        "With --fit, beside --epsilon: the relation of the claim.",
    )
    flag.integer(
        "canaries",
        None,
        "Number of canaries. Default: half of the records, at most 1000.",
    )
    flag.enum(
        "design",
        "swap",
        ["swap", "include"],
        "swap: each canary takes one of two labels, for replace_one; "
        "include: each is in or out, for add_remove.",
    )
    flag.enum(
        "kind",
        "labels",
        ["labels", "noise", "unit"],
        "Canaries: records with wrong labels, uniform noise, single pixels.",
    )
    for name, words in (
        ("low", "With --fit and --kind=noise: least value of a feature."),
        ("high", "With --fit and --kind=noise: largest value of a feature."),
        ("bound", "With --fit and --kind=unit: the norm of a record."),
    ):
        flag.float(name, None, words)
    flag.string(
        "score",
        "loss",
        "Attack: loss, margin or gradient; with --fit also "
        "path/to/script.py:function of (model, x, labels). gradient "
        "(white-box) needs weights that records move: not those of adlm and "
        "functional, published, nor of releases.",
    )
    flag.enum(
        "curve",
        None,
        ["gaussian"],
        "With --fit, for Gaussian noise on sums over all records: uses all "
        "deltas of its curve together, which shows more.",
    )
    flag.integer("seeds", 3, "Number of audits, with seeds 0, 1, ...")
    flag.integer(
        "epochs",
        600,
        "Epochs of a training that sees records in every step. Short ones show "
        "nothing.",
    )
    flag.integer("control_epochs", 600, "Of the control.")
    flag.integer(
        "batch_size",
        0,
        "Records in a batch. 0: all of them (dpmac: a fourth).",
    )
    flag.float("learning_rate", 3e-3, "Of Adam.")
    flag.integer("hidden", 64, "Units of the first layer.")
    flag.enum(
        "normalization",
        "batch",
        ["batch", "minmax", "none"],
        "Normalization after the first layer of ilm.",
    )
    flag.enum(
        "noise",
        "once",
        ["once", "per_step"],
        "Noise of ilm, drawn once (the paper) or per_step (the authors' code).",
    )
    flag.string(
        "out",
        "runs/audit",
        "Folder for audit.json, audit.txt and audit.png. Empty writes nothing.",
    )
    flag.string(
        "tensorboard",
        None,
        "TensorBoard folder for the report as scalars, text and plot.",
    )
    flag.bool("progress", True, "Show a progress bar.")


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
# What `keras_fm.audit` is told beside functions and records.
_AUDIT_FLAGS = (
    *("classes", "canaries", "design", "kind", "low", "high", "bound"),
    *("score", "curve", "neighbours"),
)


def run(values, rest):
    """Runs the command; returns the exit status."""
    del rest
    # Heavy imports only once the command line is right.
    from keras_fm.lab import audits

    arguments = {
        "train_records": values.train_records,
        "seeds": tuple(range(values.seeds)),
        "out": values.out or None,
        "tensorboard": values.tensorboard or None,
        "progress": values.progress,
        "command": command_line.of(NAME, values),
    }
    if values.fit or values.control:
        given = {name: values[name].value for name in _AUDIT_FLAGS}
        if values["epsilon"].present:
            given["claim"] = values.epsilon, values.delta
        report = audits.run_script(
            values.fit, values.control, values.dataset, **given, **arguments
        )
    else:
        report = audits.run(
            audits.Subject(**{n: values[n].value for n in _SUBJECT_FLAGS}),
            values.dataset,
            canaries=values.canaries,
            design=values.design,
            kind=values.kind,
            score=values.score,
            **arguments,
        )
    sys.stdout.write("\n" + report.text() + "\n")
    if values.out:
        sys.stdout.write(
            f"\nWritten to {values.out}: audit.txt, audit.json, audit.png\n"
        )
    if values.tensorboard:
        board = shlex.quote(values.tensorboard)
        sys.stdout.write(f"Shown by: tensorboard --logdir={board}\n")
    return 0
