"""The entry point of the command line: `keras-fm COMMAND`."""

import importlib
import os
import sys

from absl import flags

from keras_fm.lab import environment
from keras_fm.lab.commands import COMMANDS

_USAGE = """keras-fm: private Keras models by the functional mechanism.

Commands:
{commands}
  keras-fm --version    print the version

`keras-fm COMMAND --help` explains every flag.
"""


def usage():
    """What is printed without a command."""
    lines = (
        f"  keras-fm {name:<11}  {command.SUMMARY}"
        for name, command in COMMANDS.items()
    )
    return _USAGE.format(commands="\n".join(lines))


def _parse(command, argv):
    """The flags and the other arguments of a command.

    Raises:
        flags.Error: if they cannot be read.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    command.define(values)
    flags.DEFINE_bool("help", False, "Show this help.", flag_values=values)
    rest = values([f"keras-fm {command.NAME}", *argv])[1:]
    if rest and not getattr(command, "POSITIONAL", None):
        raise flags.Error(f"unexpected argument {rest[0]!r}")
    return values, rest


def _load():
    """Says whom to ask where Keras cannot be imported."""
    # Of TensorFlow's own lines none: what fails raises.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with environment.quiet():
            importlib.import_module("keras").ops.ones(1)
    # A broken backend raises whatever it likes.
    except Exception as e:
        raise ImportError(
            "keras_fm needs Keras with a backend that can be imported. "
            "`keras-fm doctor` shows what to install. Received: "
            f"{type(e).__name__}: {e}"
        ) from e


def _run(command, argv):
    try:
        values, rest = _parse(command, argv)
    except flags.Error as e:
        sys.stderr.write(f"keras-fm {command.NAME}: {e}\nTry --help.\n")
        return 2
    if values.help:
        text = f"{command.WORDS}\nFlags:\n{values.get_help()}\n"
        sys.stdout.write(text)
        return 0
    try:
        if not getattr(command, "ALONE", False):
            _load()
        if getattr(values, "out", None):
            sys.stderr.write(f"keras-fm {command.NAME}: writes {values.out}\n")
        return command.run(values, rest)
    except KeyboardInterrupt as e:
        kept = e.args[0] if e.args else "no run of this call is finished."
        sys.stderr.write(f"keras-fm {command.NAME}: interrupted; {kept}\n")
        return 130
    except OSError as e:
        words = f"{e.filename}: {e.strerror}" if e.filename else e
        sys.stderr.write(f"keras-fm {command.NAME}: {words}\n")
        return 2
    except (
        ImportError,
        OverflowError,
        RecursionError,
        ValueError,
    ) as e:
        sys.stderr.write(f"keras-fm {command.NAME}: {e}\n")
        return 2


def main(argv=None):
    """Entry point of the `keras-fm` command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["--version"]:
        from keras_fm.version import __version__

        sys.stdout.write(f"keras-fm {__version__}\n")
        return 0
    if argv and argv[0] in COMMANDS:
        return _run(COMMANDS[argv[0]], argv[1:])
    if not argv or argv[0] in ("--help", "-h", "help"):
        sys.stdout.write(usage())
        return 0
    sys.stderr.write(f"{usage()}\nkeras-fm: unknown command {argv[0]!r}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
