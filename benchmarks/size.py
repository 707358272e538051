"""How large the library is, and how much of it one call enters.

    KERAS_BACKEND=jax python benchmarks/size.py

Lines of code are those that are no docstring, comment or blank; of tests all
lines count. Files and functions of `keras_fm` are those that a profiler sees.
"""

import ast
import os
import pathlib
import sys
import tempfile

import keras
import numpy as np

import keras_fm as fm

_ROOT = pathlib.Path(fm.__file__).parent
# Also of the laboratory, though they stand elsewhere.
_SIMULATORS = (
    "health_",
    "friendships",
    "simulator",
    "behavior_windows",
    "network_arrays",
)


def code_lines(path):
    """Lines of a file that are no docstring, comment or blank."""
    text, words = path.read_text("utf-8"), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                first = node.body[0]
                words |= set(range(first.lineno, first.end_lineno + 1))
    return sum(
        number not in words and bool(line.strip()) and line.strip()[0] != "#"
        for number, line in enumerate(text.splitlines(), 1)
    )


def sizes():
    found = {"outside `lab/`": 0, "`lab/`": 0, "`kernel/`": 0, "tests": 0}
    for path in _ROOT.rglob("*.py"):
        lines, folder = code_lines(path), path.relative_to(_ROOT).parts[0]
        of_lab = folder == "lab" or path.name == "recipe.py"
        of_lab = of_lab or path.name.startswith(_SIMULATORS)
        found["`lab/`" if of_lab else "outside `lab/`"] += lines
        found["`kernel/`"] += lines * (folder == "kernel")
    for path in (_ROOT.parent / "tests").rglob("*.py"):
        found["tests"] += len(path.read_text("utf-8").splitlines())
    return found


def entered(run):
    """Files, functions, and those of them that check, which a call enters."""
    seen = set()

    def watch(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(_ROOT)):
            seen.add((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    checks = sum("check" in name or "refuse" in name for _, name in seen)
    return len({file for file, _ in seen}), len(seen), checks


def calls():
    """Each with its name: a fit on a release, a charge, noisy steps."""
    x = np.random.default_rng(0).normal(size=(200, 6)).astype("float32")
    y = np.arange(200) % 3
    head = [fm.layers.NormalizationLayer(), fm.layers.PrivateDense(3)]
    model = keras.Sequential([keras.Input((6,)), *head])
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5, data=(x, y))
    fit = {"epochs": 2, "verbose": 0}
    yield "fit", lambda: model.fit(x, y, callbacks=[private], **fit)

    (entry,) = private.ledger.entries
    path = os.path.join(tempfile.mkdtemp(), "privacy.json")
    ledger = fm.Ledger.open(
        path,
        budget=fm.PrivacyBudget(50.0, 1e-3),
        neighbours=str(private.ledger.neighbours),
    )
    ledger.charge([entry])
    yield "charge", lambda: ledger.charge([entry])

    hidden = keras.layers.Dense(8, activation="relu")
    layers = [keras.Input((6,)), hidden, keras.layers.Dense(3)]
    steps = fm.make_private(keras.Sequential(layers))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps.compile("sgd", loss)
    budget = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)
    fit = {"batch_size": 20, "verbose": 0, "callbacks": [budget]}
    yield "make_private", lambda: steps.fit(x, y, **fit)


def main():
    for name, lines in sizes().items():
        print(f"| {name} | {lines:,} |")
    for name, run in calls():
        files, functions, checks = entered(run)
        print(f"| {name} | {files} | {functions} | {checks} |")


if __name__ == "__main__":
    main()
