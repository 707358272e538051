"""Strict parsing of JSON."""

import json

# Errors that parsing a stranger's text or arrays may raise.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)


def parse(text):
    """JSON without NaN, without infinities, and without repeated names.

    Raises:
        ValueError: if the text is not such JSON.
    """
    return json.loads(
        text,
        parse_constant=_refuse_constant,
        object_pairs_hook=_without_repeats,
    )


def _refuse_constant(name):
    raise ValueError(f"{name} is not a number of JSON")


def _without_repeats(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found
