"""The command line: how its flags are made, the one that does the same again,
and numbers given in one."""

import functools
import shlex
import types

from absl import flags

# What changes neither a number nor a guarantee.
_LEFT_OUT = ("fresh", "help", "out", "processes", "progress")


def makers(values):
    """absl's functions that define a flag, in `values`: `bool`, `enum`,
    `float`, `integer`, `list` and `string`."""
    kinds = ("bool", "enum", "float", "integer", "list", "string")
    return types.SimpleNamespace(
        **{
            kind: functools.partial(
                getattr(flags, f"DEFINE_{kind}"), flag_values=values
            )
            for kind in kinds
        }
    )


def of(name, values, rest=()):
    """`keras-fm NAME` with the flags that were given.

    Args:
        name: the command's.
        values: its absl flag values.
        rest: other arguments.
    """
    given = [
        f"--{flag}={_text(values[flag].value)}"
        for flag in sorted(values)
        if values[flag].present and flag not in _LEFT_OUT
    ]
    return " ".join(["keras-fm", name, *map(shlex.quote, [*given, *rest])])


def numbers(name, texts, kind=float):
    """The numbers of a flag that lists them.

    Raises:
        ValueError: naming the flag, if one of them is none.
    """
    try:
        return [kind(text) for text in texts]
    except ValueError:
        raise ValueError(
            f"`{name}` must be {'whole ' * (kind is int)}numbers, separated "
            f"by commas. Received: {','.join(texts)!r}"
        ) from None


def _text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else value
