"""What is public of the columns of a table, in a file."""

import dataclasses
import os

from keras_fm.core import settings_file

_FACTS = ("numbers", "words", "classes")


@dataclasses.dataclass(frozen=True)
class TableSchema:
    """What a file says.

    Attributes:
        columns: dict from names to what `PrivateClassifier(columns=)` takes.
        classes: dict from names of columns of labels to lists of them.
    """

    columns: dict
    classes: dict

    def target(self, name=""):
        """The column of labels."""
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
        ValueError: if there is none, or it says something else of a column.
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
                f"Column {name!r} of {os.fspath(path)!r} must say one of "
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
