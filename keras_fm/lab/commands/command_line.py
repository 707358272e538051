"""The command line that does the same again, and numbers given in one."""

import shlex

# What changes neither a number nor a guarantee.
_LEFT_OUT = ("fresh", "help", "out", "processes", "progress")


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


def numbers(name, texts):
    """The numbers of a flag that lists them.

    Raises:
        ValueError: naming the flag, if one of them is none.
    """
    try:
        return [float(text) for text in texts]
    except ValueError:
        raise ValueError(
            f"`{name}` must be numbers, separated by commas. Received: "
            f"{','.join(texts)!r}"
        ) from None


def _text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else value
