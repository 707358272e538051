"""A schema file: the public facts about the columns of a table."""

import dataclasses
import os

from keras_fm.core import settings_file

_FACTS = ("numbers", "words", "classes")


@dataclasses.dataclass(frozen=True)
class TableSchema:
    """The content of a schema file.

    Attributes:
        columns: dict from names to columns for `PrivateClassifier(columns=)`.
        classes: dict from the names of label columns to lists of labels.
    """

    columns: dict
    classes: dict

    def target(self, name=""):
        """The name of the column of labels."""
        if not name and len(self.classes) == 1:
            (name,) = self.classes
        if name not in self.classes:
            raise ValueError(
                "`target` must be a column with `classes` in the schema: "
                '`income = {classes = ["low", "high"]}`. Received: '
                f"target={name!r}"
            )
        return name


def load(path):
    """The `TableSchema` of a `.toml` or `.json` file.

    Raises:
        ValueError: if there is no such file, or its facts about a column are
            not of the three kinds.
    """
    if not os.path.isfile(path):
        raise ValueError(
            "`columns` must be a dict, or the path of a file as `keras-fm "
            f"schema` writes it. There is no file {os.fspath(path)!r}"
        )
    columns, classes = {}, {}
    for name, told in settings_file.load(path).items():
        facts = [*told] if isinstance(told, dict) else []
        if len(facts) != 1 or facts[0] not in _FACTS or not _is_list(told):
            raise ValueError(
                f"Column {name!r} of {os.fspath(path)!r} must have one of "
                "`numbers = [18, 90]`, `words = [...]` and `classes = [...]`. "
                f"Received: {told!r}"
            )
        ((fact, values),) = told.items()
        if fact == "classes":
            classes[name] = values
        else:
            columns[name] = tuple(values) if fact == "numbers" else values
    return TableSchema(columns, classes)


def _is_list(told):
    return all(isinstance(v, list) and v for v in told.values())
