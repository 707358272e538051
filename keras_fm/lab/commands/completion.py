"""`keras-fm completion`: scripts that let a shell complete commands."""

import argparse
import sys

from absl import flags

from keras_fm.version import __version__

NAME = "completion"
SUMMARY = "a script that lets bash, zsh or tcsh complete commands and flags"
POSITIONAL = "bash|zsh|tcsh"
CHOICES = ("bash", "zsh", "tcsh")
ALONE = True

WORDS = """Prints a script that lets a shell complete commands and flags.

  source <(keras-fm completion bash)
      for this shell; to keep it, write the script to a file of
      ~/.local/share/bash-completion/completions, named keras-fm
  keras-fm completion zsh
      write it to a file of a folder of $fpath, named _keras-fm

The script is made by shtab from the commands' own flags. It runs nothing of
keras-fm.
"""


def define(values):
    """Defines the flags in `values`: none."""
    del values


def run(values, rest):
    """Runs the command; returns the exit status."""
    del values
    if len(rest) != 1 or rest[0] not in CHOICES:
        raise ValueError(
            "The shell must be one of "
            f"{', '.join(CHOICES)}. Received: {' '.join(rest) or 'none'}"
        )
    import shtab

    sys.stdout.write(shtab.complete(parser(), rest[0]) + "\n")
    return 0


def parser():
    """All commands and their flags, as argparse knows them.

    Returns:
        an `argparse.ArgumentParser`.
    """
    # The table holds this module: it can be asked for only when it is there.
    from keras_fm.lab.commands import COMMANDS

    whole = argparse.ArgumentParser("keras-fm")
    whole.add_argument("--version", action="version", version=__version__)
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.SUMMARY)
        values = flags.FlagValues()
        command.define(values)
        for flag in sorted(values):
            _add(one, values[flag])
        if getattr(command, "POSITIONAL", None):
            _add_words(one, getattr(command, "CHOICES", None))
    return whole


def _add(parser, flag):
    said = flag.help.replace("%", "%%")
    if flag.boolean:
        spelled = (f"--{flag.name}", f"--no{flag.name}")
        parser.add_argument(*spelled, action="store_true", help=said)
        return
    choices = getattr(flag.parser, "enum_values", None)
    found = parser.add_argument(f"--{flag.name}", choices=choices, help=said)
    if choices is None:
        _files(found)


def _add_words(parser, choices):
    found = parser.add_argument("words", nargs="*", choices=choices)
    if choices is None:
        _files(found)


def _files(argument):
    import shtab

    argument.complete = shtab.FILE
