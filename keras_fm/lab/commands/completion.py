"""`keras-fm completion`: scripts that let a shell complete commands."""

import sys

from absl import flags

from keras_fm.version import __version__

NAME = "completion"
SUMMARY = "a script that lets bash or zsh complete commands and flags"
POSITIONAL = "bash|zsh"
ALONE = True

WORDS = """Prints a script that lets a shell complete commands and flags.

  source <(keras-fm completion bash)
      for this shell; to keep it, write the script to a file of
      ~/.local/share/bash-completion/completions, named keras-fm
  source <(keras-fm completion zsh)
      for this shell (after compinit); to keep it, write the script to a file
      of a folder of $fpath, named _keras-fm

The script is made from the commands' own flags. It runs nothing of keras-fm.
"""

SHELLS = ("bash", "zsh")


def define(values):
    """Defines the flags in `values`: none."""
    del values


def run(values, rest):
    """Runs the command; returns the exit status."""
    del values
    if len(rest) != 1 or rest[0] not in SHELLS:
        raise ValueError(
            "The shell must be one of "
            f"{', '.join(SHELLS)}. Received: {' '.join(rest) or 'none'}"
        )
    sys.stdout.write({"bash": bash, "zsh": zsh}[rest[0]]())
    return 0


def _commands():
    # The table holds this module: it can be asked for only when it is there.
    from keras_fm.lab.commands import COMMANDS

    return COMMANDS


def _flags(command):
    """The absl flags of a command, by name, `help` included."""
    values = flags.FlagValues()
    command.define(values)
    flags.DEFINE_bool("help", False, "Show the help.", flag_values=values)
    return {name: values[name] for name in sorted(values)}


def _positional(command):
    """Words that may follow the flags; files where they are not known."""
    if command.NAME == NAME:
        return SHELLS
    return getattr(command, "CHOICES", ())


def _choices(flag):
    """Values of a flag, where they are a fixed list."""
    return tuple(getattr(flag.parser, "enum_values", None) or ())


def _spellings(flag):
    """How a flag is begun: `--name=`, or `--name` and `--noname`."""
    if not flag.boolean:
        return (f"--{flag.name}=",)
    if flag.name == "help":
        return ("--help",)
    return (f"--{flag.name}", f"--no{flag.name}")


def bash():
    """The script for bash.

    Returns:
        str: the definition of a function and its registration.
    """
    words, values, rest = [], [], []
    for name, command in _commands().items():
        found = _flags(command)
        spelled = " ".join(s for f in found.values() for s in _spellings(f))
        words.append(f'    {name}) words="{spelled}" ;;')
        for flag in found.values():
            if choices := _choices(flag):
                values.append(
                    f'    {name}:--{flag.name}) words="{" ".join(choices)}" ;;'
                )
        if positional := _positional(command):
            rest.append(f'    {name}) words="{" ".join(positional)}" ;;')
    return _BASH.format(
        version=__version__,
        commands=" ".join(_commands()),
        flags="\n".join(words),
        values="\n".join(values),
        rest="\n".join(rest),
    )


def zsh():
    """The script for zsh.

    Returns:
        str: a file for a folder of `$fpath`, or to be sourced.
    """
    described, cases = [], []
    for name, command in _commands().items():
        described.append(f"    {_quoted(f'{name}:{command.SUMMARY}')}")
        specs = []
        for flag in _flags(command).values():
            said = _escaped(" ".join(flag.help.split()))
            for spelled in _spellings(flag):
                if not spelled.endswith("="):
                    specs.append(f"{spelled}[{said}]")
                    continue
                action = " ".join(_choices(flag))
                action = f"({action})" if action else "_files"
                specs.append(f"{spelled}-[{said}]:{flag.name}:{action}")
        words = " ".join(_escaped(word) for word in _positional(command))
        if getattr(command, "POSITIONAL", None):
            specs.append(f"*::word:({words})" if words else "*:folder:_files")
        lines = " \\\n".join(f"        {_quoted(spec)}" for spec in specs)
        cases.append(f"    {name})\n      _arguments \\\n{lines}\n      ;;")
    return _ZSH.format(
        version=__version__,
        commands="\n".join(described),
        cases="\n".join(cases),
    )


def _quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"


def _escaped(word):
    """Text inside a specification of `_arguments`."""
    for special in "\\[]:":
        word = word.replace(special, "\\" + special)
    return word


# Bash splits words at "=" and ":": the word is taken from the line instead,
# and what is offered is what stands behind the last of these characters.
_BASH = """\
# Completion of keras-fm {version} for bash.
_keras_fm() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" words="" command="" word before
  local current="${{line##*[[:space:]]}}"
  local -a typed
  read -ra typed <<< "${{line%"$current"}}"
  COMPREPLY=()
  command="${{typed[1]:-}}"
  if [[ -z "$command" ]]; then
    COMPREPLY=($(compgen -W "{commands} --version --help" -- "$current"))
    return
  fi
  case "$current" in
  --*=*)
    case "$command:${{current%%=*}}" in
{values}
    *)
      COMPREPLY=($(compgen -f -- "${{current#*=}}"))
      compopt -o filenames 2>/dev/null
      return
      ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{current#*=}}"))
    [[ "$COMP_WORDBREAKS" == *=* ]] ||
      COMPREPLY=("${{COMPREPLY[@]/#/${{current%%=*}}=}}")
    return
    ;;
  -*)
    case "$command" in
{flags}
    esac
    ;;
  *)
    case "$command" in
{rest}
    *)
      COMPREPLY=($(compgen -f -- "$current"))
      compopt -o filenames 2>/dev/null
      return
      ;;
    esac
    ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ "$current" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
    before="${{current%"${{current##*:}}"}}"
    COMPREPLY=("${{COMPREPLY[@]#"$before"}}")
  fi
  for word in "${{COMPREPLY[@]}}"; do
    [[ "$word" == *= ]] && compopt -o nospace 2>/dev/null
  done
}}
complete -F _keras_fm keras-fm
"""

_ZSH = """\
#compdef keras-fm
# Completion of keras-fm {version} for zsh.
_keras_fm() {{
  local -a commands
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe -t commands command commands
    return
  fi
  local command="$words[2]"
  shift words
  (( CURRENT-- ))
  case "$command" in
{cases}
  esac
}}
if [[ "$funcstack[1]" == "_keras_fm" || "$funcstack[1]" == "_keras-fm" ]]; then
  _keras_fm "$@"
else
  compdef _keras_fm keras-fm
fi
"""
