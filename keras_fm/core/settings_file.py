"""JSON and TOML files that people write: limited in size, strictly parsed."""

from keras_fm.kernel.ledger import strict_json

_LARGEST = 1_000_000


def load(path):
    """The contents of a `.json` or `.toml` file (1 MB at most).

    Raises:
        ValueError: why it cannot be parsed; the caller names the file.
        OSError: if it cannot be opened.
    """
    with open(path, "rb") as f:
        raw = f.read(_LARGEST + 1)
    if len(raw) > _LARGEST:
        raise ValueError("it is larger than 1 MB.")
    text, name = raw.decode("utf-8"), str(path)
    try:
        if name.endswith(".toml"):
            return _parse_toml(text)
        if name.endswith(".json"):
            return strict_json.parse(text)
    except RecursionError as e:
        raise ValueError(f"it is nested too deeply: {e}") from e
    raise ValueError("its name must end in .json or .toml.")


def _parse_toml(text):
    try:
        import tomllib
    except ImportError:
        raise ValueError(
            "TOML needs Python 3.11 or newer; write it as JSON."
        ) from None
    return tomllib.loads(text)
