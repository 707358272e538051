"""What is public of a table, in a file."""

import pytest

from keras_fm.estimators import PrivateClassifier, table_schema
from keras_fm.estimators.table_columns import TableColumns

pytestmark = pytest.mark.once

TEXT = """
age = {numbers = [18, 90]}
"work place" = {words = ["farm", "office"]}
income = {classes = ["low", "high"]}
"""


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "schema.toml"
    found.write_text(TEXT)
    return found


def test_a_file_is_what_columns_are(path):
    known = table_schema.load(path)
    assert known.columns == {
        "age": (18, 90),
        "work place": ["farm", "office"],
    }
    assert known.classes == {"income": ["low", "high"]}
    assert known.target() == "income"
    with pytest.raises(ValueError, match="must be a column with `classes`"):
        known.target("age")
    assert TableColumns(path).names == ["age", "work place"]
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {
            "note": ["x"] * 40,
            "work place": ["farm", "office"] * 20,
            "age": [20, 80] * 20,
        }
    )
    labels = ["low", "high"] * 20
    model = PrivateClassifier(
        1e4, 1e-6, columns=str(path), classes=["low", "high"]
    )
    assert list(model.fit(table, labels).predict(table)) == labels


@pytest.mark.parametrize(
    "line",
    [
        "age = [18, 90]",
        "age = {}",
        "age = {numbers = []}",
        "age = {numbers = [1, 2], words = ['a']}",
        "age = {range = [1, 2]}",
    ],
)
def test_what_says_something_else_is_refused(tmp_path, line):
    path = tmp_path / "schema.toml"
    path.write_text(line)
    with pytest.raises(ValueError, match="Column 'age' of .* must have one of"):
        table_schema.load(path)
