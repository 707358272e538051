"""A privacy statement as a file that anyone can check.

It identifies the weights by a digest and has every ledger entry. So a reader
composes epsilon again and need not believe the file.
"""

import json
import os

from keras_fm.core import statement_facts
from keras_fm.kernel.ledger import locked_file, strict_json
from keras_fm.per_example import past_weights
from keras_fm.training import model_check

_FORMAT = "keras_fm statement 1"


def save(path, model, ledger):
    """Writes the statement of a model that was trained with privacy.

    Raises:
        ValueError: if the weights changed since the private fit, or if the
            file holds something else.
    """
    path = os.fspath(path)
    if os.path.exists(path):
        try:
            parsed(locked_file.read_text(path))
        except strict_json.MALFORMED:
            raise ValueError(
                "`path` must be a new file or an earlier statement, such as "
                '"statement.json": a ledger has a file of its own. Received: '
                f"path={path!r}, which holds something else"
            ) from None
    if model is None:
        raise ValueError("No statement before a fit: call `fit` first.")
    if hasattr(model, "check_weights"):
        model.check_weights()
    model_check.check_parts(model, ())
    # The content that `save` writes to a file.
    steps = getattr(model, "makes_private_steps", False)
    plain = model.model if steps else model
    data = {
        "format": _FORMAT,
        "model": plain.name,
        "weights": past_weights.digest(plain),
        "ledgers": [
            {
                "epsilon": f"{one.epsilon():.12g}",
                "facts": statement_facts.of(one),
                "ledger": json.loads(one.to_json()),
            }
            for one in model_check.ledgers_of(model, ledger)
        ],
    }
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps(data, indent=1, allow_nan=False))


def parsed(text):
    """Parses the text of a statement. Its content is not verified yet."""
    data = strict_json.parse(text)
    if data["format"] != _FORMAT:
        raise ValueError("unknown format")
    return data
