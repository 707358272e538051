"""Which module may import which, read from the source.

Privacy can be reviewed because few files touch private records; these
directions keep it so. The tests read syntax trees: they need no backend.
"""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "keras_fm"
FRAMEWORKS = {
    "jax",
    "keras",
    "tensorflow",
    "tensorflow_privacy",
    "tf_keras",
    "torch",
}
TENSORFLOW = {"tensorflow", "tensorflow_privacy", "tf_keras"}
CORE = {
    "keras_fm.budget",
    "keras_fm.auditing",
    "keras_fm.claims",
    "keras_fm.composition",
    "keras_fm.discrete_noise",
    "keras_fm.domain",
    "keras_fm.filters",
    "keras_fm.gathered_reads",
    "keras_fm.lattice_noise",
    "keras_fm.ledger",
    "keras_fm.ledger_entry",
    "keras_fm.ledger_state",
    "keras_fm.ledger_text",
    "keras_fm.locked_file",
    "keras_fm.mechanism_limits",
    "keras_fm.mechanisms",
    "keras_fm.objectives",
    "keras_fm.placed_records",
    "keras_fm.polynomials",
    "keras_fm.privacy_statement",
    "keras_fm.quick_bounds",
    "keras_fm.records",
    "keras_fm.release",
    "keras_fm.sampling",
    "keras_fm.partial_statistics",
    "keras_fm.settings_file",
    "keras_fm.stored_arrays",
    "keras_fm.summation",
}

# What audits see beyond arrays: imported late, and only by the audits.
AUDIT_VIEWS = {
    "keras_fm.auditing.gradient_score",
    "keras_fm.auditing.report_board",
}


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p): p for p in sorted(PACKAGE.rglob("*.py"))}


def imports(source, module, is_package=False, known=()):
    """Yields `(imported module, inside a function)`."""

    def names(node):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = len(parts) - node.level + is_package
                base = ".".join(parts[:kept] + ([base] if base else []))
            for alias in node.names:
                full = f"{base}.{alias.name}"
                # `from package import module` imports the module.
                yield full if full in known else base
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func)
            in ("importlib.import_module", "import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value

    def walk(node, nested):
        for child in ast.iter_child_nodes(node):
            yield from ((name, nested) for name in names(child))
            function = isinstance(
                child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
            )
            yield from walk(child, nested or function)

    yield from walk(ast.parse(source), False)


def imports_of(module):
    path = MODULES[module]
    return set(
        imports(
            path.read_text(encoding="utf-8"),
            module,
            path.name == "__init__.py",
            MODULES,
        )
    )


def is_in(module, packages):
    return any(module == p or module.startswith(p + ".") for p in packages)


def within(*packages):
    packages = {f"keras_fm.{p}" for p in packages}
    return [m for m in MODULES if is_in(m, packages)]


def offences(modules, forbidden):
    return [
        (module, name)
        for module in modules
        for name, _ in imports_of(module)
        if is_in(name, forbidden)
    ]


def reached(modules):
    """These, and what they import in turn."""
    found, todo = set(modules), list(modules)
    while todo:
        new = {name for name, _ in imports_of(todo.pop())} & set(MODULES)
        todo += new - found
        found |= new
    return found


def test_the_checker_sees_every_form_of_import():
    source = """
import a.b
from c import d
from keras_fm import ledger
from . import x
from .y import z
from .. import w
def f():
    import late
    importlib.import_module("dynamic")
"""
    found = set(imports(source, "keras_fm.p.q", False, {"keras_fm.ledger"}))
    assert found == {
        ("a.b", False),
        ("c", False),
        ("keras_fm.ledger", False),
        ("keras_fm.p", False),
        ("keras_fm.p.y", False),
        ("keras_fm", False),
        ("late", True),
        ("dynamic", True),
    }
    package = set(imports("from . import x", "keras_fm.p", True))
    assert package == {("keras_fm.p", False)}
    assert is_in("keras.ops", {"keras"}) and not is_in("keras_fm", {"keras"})
    # By way of `keras_fm.ledger`.
    assert "keras_fm.locked_file" in reached(within("training.guarantee"))


def test_the_core_is_there():
    assert CORE <= set(MODULES)
    assert len(within("layers")) > 2 and len(within("losses")) > 1


@pytest.mark.parametrize(
    "module", [m for m in MODULES if is_in(m, CORE) and m not in AUDIT_VIEWS]
)
def test_the_core_imports_no_framework_and_only_the_core(module):
    assert offences([module], FRAMEWORKS) == []
    for name, _ in imports_of(module):
        if name.startswith("keras_fm"):
            assert is_in(name, CORE), name


def test_what_audits_look_at_is_imported_late():
    assert AUDIT_VIEWS <= set(MODULES)
    for view in AUDIT_VIEWS:
        for name, nested in imports_of(view):
            if is_in(name, FRAMEWORKS | {"keras_fm"}):
                assert nested, (view, name)
    for module in MODULES:
        if not is_in(module, {"keras_fm.auditing"}):
            assert offences([module], AUDIT_VIEWS) == []


ABOVE_LAYERS = {
    f"keras_fm.{m}"
    for m in (
        "baselines",
        "callbacks",
        "cli",
        "experiments",
        "ledger",
        "models",
        "records",
        "release",
        "training",
    )
}


def test_parts_layers_and_losses_cannot_release():
    lower = within("parts", "layers", "losses")
    assert offences(lower, {*ABOVE_LAYERS, "keras_fm.mechanisms"}) == []
    # Nor does anything that they import, however far down.
    assert [m for m in reached(lower) if is_in(m, ABOVE_LAYERS)] == []


def test_parts_know_no_layer():
    """What a private layer promises: layers import it."""
    known = {"keras_fm.parts", "keras_fm.replicas", "keras_fm.sampling"}
    for module in within("parts"):
        for name, _ in imports_of(module):
            if name.startswith("keras_fm"):
                assert is_in(name, known), (module, name)


def test_models_know_the_words_of_a_guarantee_only():
    """They say which guarantee they have; `training` keeps it."""
    models = within("models")
    promised = offences(models, {"keras_fm.training"})
    assert {name for _, name in promised} == {"keras_fm.training.guarantee"}
    forbidden = ABOVE_LAYERS - {"keras_fm.models", "keras_fm.training"}
    assert offences(models, forbidden) == []


def test_training_names_layers_and_models_only_where_it_must():
    """What a layer releases it says itself; these few ask for more."""
    for package, allowed in (
        ("layers", within("training.model_check", "training.old_keywords")),
        ("models", within("training.steps_of_fit")),
        ("callbacks", []),
    ):
        found = offences(within("training"), {f"keras_fm.{package}"})
        assert {module for module, _ in found} <= set(allowed), package


def test_everybody_else_gets_training_from_the_callback():
    allowed = {"keras_fm.training.guarantee"}
    for module in MODULES:
        if not is_in(module, {"keras_fm.training", "keras_fm.callbacks"}):
            found = {n for _, n in offences([module], {"keras_fm.training"})}
            if is_in(module, {"keras_fm.baselines"}):
                # What keeps records apart is asked of rivals, too.
                found -= {"keras_fm.training.row_independence"}
            assert found <= allowed, module


def test_the_core_is_layered():
    """What a number means, what noise costs and who spends stay apart."""
    lower = {
        "auditing": CORE
        - {
            f"keras_fm.{m}"
            for m in ("auditing", "budget", "domain", "ledger", "mechanisms")
        },
        "budget": CORE,
        "claims": CORE - {"keras_fm.budget"},
        "composition": CORE
        - {
            f"keras_fm.{m}"
            for m in (
                "composition",
                "domain",
                "mechanisms",
                "sampling",
                "settings_file",
            )
        },
        "domain": CORE - {"keras_fm.summation"},
        "filters": CORE,
        "discrete_noise": CORE,
        "lattice_noise": CORE - {"keras_fm.discrete_noise"},
        "mechanism_limits": CORE,
        "mechanisms": CORE
        - {
            f"keras_fm.{m}"
            for m in (
                "discrete_noise",
                "lattice_noise",
                "mechanism_limits",
                "quick_bounds",
            )
        },
        "objectives": CORE
        - {
            f"keras_fm.{m}"
            for m in ("budget", "domain", "objectives", "summation")
        },
        "partial_statistics": CORE
        - {f"keras_fm.{m}" for m in ("stored_arrays", "summation")},
        "placed_records": CORE,
        "polynomials": CORE,
        "records": CORE,
        "ledger": CORE
        - {
            f"keras_fm.{m}"
            for m in (
                "budget",
                "ledger_state",
                "ledger_text",
                "locked_file",
                "mechanisms",
                "privacy_statement",
            )
        },
        "ledger_entry": CORE
        - {
            f"keras_fm.{m}"
            for m in ("budget", "mechanism_limits", "mechanisms")
        },
        "ledger_state": CORE - {"keras_fm.ledger_text"},
        "ledger_text": CORE
        - {
            f"keras_fm.{m}" for m in ("budget", "ledger_entry", "settings_file")
        },
        "privacy_statement": CORE - {"keras_fm.ledger_entry"},
        "quick_bounds": CORE,
        "locked_file": CORE,
        "settings_file": CORE,
        "stored_arrays": CORE,
        "summation": CORE,
        "sampling": CORE
        - {f"keras_fm.{m}" for m in ("budget", "domain", "mechanisms")},
    }
    for module, forbidden in lower.items():
        assert offences(within(module), forbidden) == [], module


def test_few_modules_release():
    allowed = within("training")
    for module in MODULES:
        if offences([module], {"keras_fm.release"}):
            # The package shows the class `Release`.
            shown = ["keras_fm", "keras_fm.gathered_reads"]
            assert module in [*allowed, *shown], module


def test_tensorflow_is_imported_only_where_it_is_needed():
    for module in MODULES:
        for name, nested in imports_of(module):
            if is_in(name, TENSORFLOW):
                assert nested, (module, name)
                allowed = within(
                    "auditing.gradient_score",
                    "baselines",
                    "callbacks.tensorboard_files",
                    "parts.concrete",
                    "relevance",
                    "replicas",
                )
                assert module in allowed, module
            elif is_in(name, {"jax", "torch"}):
                assert nested, (module, name)


def test_commands_import_nothing_heavy_before_they_run():
    """`keras-fm COMMAND --help`, and a script for a shell, load nothing."""
    light = {*sys.stdlib_module_names, "absl", "keras_fm.version"}
    for module in within("commands"):
        for name, nested in imports_of(module):
            if not nested and not is_in(name, {"keras_fm.commands"}):
                assert is_in(name, light), (module, name)
