"""JSON that is read strictly."""

import json

# What reading a text or arrays may end in that somebody else wrote.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)


def parse(text):
    """JSON without NaN, infinities, or a name that is given twice.

    Raises:
        ValueError: if the text is something else.
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
