"""What may import what (folders: `lint-imports`), and how long a file is."""

import ast
import collections
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.once, pytest.mark.full]

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted((ROOT / "keras_fm").rglob("*.py"))
}
# Who may ask for TensorFlow, and only inside a function.
TENSORFLOW = (
    "keras_fm.lab.auditing.gradient_score",
    "keras_fm.lab.baselines",
    "keras_fm.core.variable_values",
    "keras_fm.core.record_alone",
    "keras_fm.core.device_sums",
    "keras_fm.core.replicas",
    "keras_fm.per_example.pull_backs",
    "keras_fm.per_example.sum_noise",
    "keras_fm.core.full_precision",
    "keras_fm.per_example",
)


def imports(source):
    """Yields `(imported module, inside a function)`."""

    def walk(node, nested):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, nested) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield child.module, nested
            inside = isinstance(child, (ast.FunctionDef, ast.Lambda))
            yield from walk(child, nested or inside)

    yield from walk(ast.parse(source), False)


def test_the_checker_sees_imports():
    source = "import a.b\nfrom c import d\ndef f():\n    import late\n"
    assert list(imports(source)) == [
        ("a.b", False),
        ("c", False),
        ("late", True),
    ]


def test_folders_know_those_below_them():
    pytest.importorskip("importlinter")
    code = "from importlinter.cli import lint_imports_command as f; f()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_frameworks_are_imported_only_where_they_are_needed():
    found = 0
    for module, path in MODULES.items():
        for name, nested in imports(path.read_text(encoding="utf-8")):
            framework = name.partition(".")[0]
            if framework in ("tensorflow", "tensorflow_privacy", "tf_keras"):
                assert nested and module.startswith(TENSORFLOW), module
                found += 1
            assert nested or framework not in ("jax", "torch"), module
    assert found >= len(TENSORFLOW)


def test_commands_import_nothing_heavy_before_they_run():
    """`keras-fm COMMAND --help` loads nothing."""
    light = {*sys.stdlib_module_names, "absl", "keras_fm"}
    for module, path in MODULES.items():
        if module.startswith(("keras_fm.lab.cli", "keras_fm.lab.commands")):
            for name, nested in imports(path.read_text(encoding="utf-8")):
                assert nested or name.partition(".")[0] in light, module


def test_a_review_needs_numpy_only():
    """And whoever asks for a name afterwards has it."""
    kernel = [m for m in MODULES if m.startswith("keras_fm.kernel.")]
    code = (
        "import importlib, sys\n"
        f"for name in {kernel!r}:\n"
        "    importlib.import_module(name)\n"
        "heavy = 'dp_accounting jax keras scipy tensorflow torch'.split()\n"
        "assert not set(heavy) & set(sys.modules)\n"
        "import keras_fm\n"
        "from keras_fm import mechanisms\n"
        "import keras_fm.polynomials\n"
        "assert mechanisms is sys.modules['keras_fm.kernel.mechanisms']\n"
        "found = keras_fm.polynomials.__name__\n"
        "assert found == 'keras_fm.public.polynomials'\n"
        "assert keras_fm.Ledger and 'Ledger' in dir(keras_fm)\n"
    )
    assert len(kernel) > 15
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_fit_loads_nothing_of_the_laboratory():
    """`fm.auditing`, `fm.baselines` and `fm.composition` wait until used."""
    code = (
        "import sys\n"
        "import numpy as np\n"
        "import keras\n"
        "import keras_fm as fm\n"
        "x, y = np.full((8, 3), 0.5), np.arange(8) % 2\n"
        "head = [fm.layers.NormalizationLayer(), fm.layers.PrivateDense(2)]\n"
        "model = keras.Sequential([keras.Input((3,)), *head])\n"
        "model.compile('adam', fm.losses.TaylorCrossEntropy())\n"
        "pay = fm.callbacks.PrivateModel(epsilon=2, delta=0, data=(x, y))\n"
        "model.fit(x, y, verbose=0, callbacks=[pay])\n"
        "lab = [m for m in sys.modules if m.startswith('keras_fm.lab')]\n"
        "assert not lab, lab\n"
        "for name in ('auditing', 'baselines', 'composition'):\n"
        "    assert getattr(fm, name) is sys.modules[f'keras_fm.lab.{name}']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_review_names_the_folders_of_the_kernel_and_their_lengths():
    page = (ROOT / "docs" / "library_design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^   \| .* \| `kernel/(.*)` \| ([\d,]+) \|$", page, re.M)
    lines = collections.Counter()
    for module, path in MODULES.items():
        if module.startswith("keras_fm.kernel."):
            folder = path.parent.relative_to(ROOT / "keras_fm" / "kernel")
            lines[folder.as_posix()] += path.read_text("utf-8").count("\n")
    said = {
        folder or ".": int(count.replace(",", "")) for folder, count in rows
    }
    assert set(said) == set(lines)
    assert all(abs(lines[folder] - said[folder]) <= 50 for folder in said)
    # An afternoon.
    assert lines["."] <= 4400


@pytest.mark.parametrize(
    "first",
    ["keras", "keras_fm", "keras_fm.heads.private_dense"],
)
def test_keras_knows_saved_classes_whoever_comes_first(first):
    code = (
        f"import {first}\n"
        "import keras, keras_fm\n"
        "find = keras.saving.get_registered_object\n"
        "names = 'PrivateDense TaylorCrossEntropy FunctionalNet'.split()\n"
        "assert all(find('keras_fm>' + name) for name in names)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
