"""The command line: `keras-fm compare` and what it teaches."""

import logging
import sys

from absl import flags

_USAGE = """keras-fm: private Keras models by the functional mechanism.

Commands:
  keras-fm compare    train one architecture in every way, side by side:
                      non-private, truncated, published, proven,
                      adaptive (AdLM), auto-encoder (dPA), and
                      tensorflow-privacy's DP-SGD; print one table
  keras-fm --version  print the version

`keras-fm compare --help` explains every flag.
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
        "proven, adlm_proven, dpa_published, dpa_proven, dp_sgd_vectorized, "
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


def compare(argv):
    """Runs `keras-fm compare`; returns the exit status."""
    values = flags.FlagValues()
    _define_compare(values)
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    try:
        rest = values(["keras-fm compare", *argv])[1:]
        if rest:
            raise flags.Error(f"unexpected argument {rest[0]!r}")
        if values.help:
            sys.stdout.write(_COMPARE + "\nFlags:\n" + values.get_help() + "\n")
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


def main(argv=None):
    """Entry point of the `keras-fm` command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["--version"]:
        from keras_fm.version import __version__

        sys.stdout.write(f"keras-fm {__version__}\n")
        return 0
    if argv[:1] == ["compare"]:
        return compare(argv[1:])
    asked = not argv or argv[0] in ("--help", "-h", "help")
    (sys.stdout if asked else sys.stderr).write(_USAGE)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
