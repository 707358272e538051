"""The examples of docstrings: what `>>>` shows is what comes out, and sketches
name arguments that exist."""

import doctest
import inspect
import re
import sys
import textwrap

import keras
import numpy as np
import pytest
from test_docs import symbols
from test_pages import wrong_argument

import keras_fm as fm
from keras_fm import public_names

pytestmark = [pytest.mark.once, pytest.mark.tensorflow]

FITTED = """
x = np.random.default_rng(0).random((1000, 64), "float32")
y = np.arange(1000) % 10
layer = fm.layers.PrivateDense(10, name="head")
model = keras.Sequential(
    [keras.Input((64,)), fm.layers.NormalizationLayer(), layer]
)
model.compile("adam", fm.losses.TaylorCrossEntropy())
private = fm.callbacks.PrivateModel(
    epsilon=1.0, delta=1e-5, data=(x, y), guarantee=fm.Proven(spends=0.5)
)
model.fit(x, y, callbacks=[private], verbose=0)
release, ledger, models = private.releases["head"], private.ledger, [model] * 2
h = x / 8.0
"""
# What the example of a symbol takes as given.
GIVEN = {
    "keras_fm.evaluation.Choice": FITTED,
    "keras_fm.evaluation.Evaluation": FITTED,
    "keras_fm.partial_statistics.PartialStatistics": FITTED,
}
UNRUN = {
    "keras_fm.gathered_rounds.GatheredRounds": "docs/large_data.md runs it",
}


def examples():
    """`{symbol: docstring}`, each object once."""
    found, seen = {}, set()
    for name, value in symbols().items():
        if callable(value) and value.__doc__ and id(value) not in seen:
            seen.add(id(value))
            found[name] = inspect.getdoc(value)
    return found


SHOWN = [name for name, text in examples().items() if ">>> " in text]


class Checker(doctest.OutputChecker):
    """A shape is a shape, whatever a backend calls it."""

    def check_output(self, want, got, flags):
        got = re.sub(r"(?:TensorShape|torch.Size)\(\[(.*)\]\)", r"(\1)", got)
        return super().check_output(want, got, flags)


def namespace(name):
    """What stands around a symbol, and what everybody imports."""
    value = symbols()[name]
    of = sys.modules[getattr(value, "__module__", "keras_fm")]
    around = fm
    for part in name.split(".")[1:-1]:
        around = getattr(around, part)
    found = {n: getattr(fm, n) for n in public_names.NAMES}
    found |= vars(around) | vars(of)
    found |= {n: getattr(around, n) for n in getattr(around, "__all__", ())}
    found |= {"np": np, "keras": keras, "fm": fm, "keras_fm": fm}
    found["datasets"] = fm.datasets
    exec(GIVEN.get(name, ""), found)
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in SHOWN if n not in UNRUN])
def test_an_example_shows_what_comes_out(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(
        examples()[name], namespace(name), name, None, 0
    )
    said = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(Checker(), optionflags=flags)
    failed = runner.run(test, out=said.append).failed
    assert not failed, "".join(said)


def test_sketches_name_arguments_that_exist():
    wrong, sketches = {}, 0
    for name, text in examples().items():
        for code in re.findall(r"```python\n(.*?)```", text, re.S):
            sketches += 1
            if found := wrong_argument(textwrap.dedent(code)):
                wrong[name] = found
    assert wrong == {} and sketches > 20
