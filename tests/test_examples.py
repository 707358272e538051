"""The examples run, and what they print is composed from a ledger."""

import pathlib
import re
import runpy

import pytest

pytestmark = [
    pytest.mark.once,
    pytest.mark.full,
    pytest.mark.optimised,
    pytest.mark.tensorflow,
]

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
# Of each script: smaller arguments of its `main`, what it prints, the file that
# it leaves, and the least of the numbers that a pattern finds: noise is fresh.
RUNS = {
    "first_private_model.py": (
        {},
        ["(epsilon = 1.99", "random weights (fourier, seed 0)"],
        "private_digits.keras",
        None,
    ),
    "adlm_relevance.py": (
        {},
        ["(epsilon = 3.99", "(relevance): proven", "(epsilon = inf"],
        "relevance.png",
        None,
    ),
    "private_autoencoder.py": (
        {},
        ["(epsilon = 3.99", "encoder_1 (moments): proven"],
        "private_autoencoder.png",
        None,
    ),
    "behavior_prediction.py": (
        {},
        ["(epsilon = 7.99", "by declaration one user with all windows\n"],
        None,
        ("days: ([0-9.]+)", 65),
    ),
    "cdbn_filters.py": (
        {},
        ["(epsilon = 7.99", "crbm_2 (patch moments): proven"],
        "cdbn_filters.png",
        ("test accuracy ([0-9.]+)", 0.5),
    ),
    "dp_mac.py": (
        {},
        ["(epsilon = 1.99", "DP-MAC: "],
        None,
        ("test accuracy ([0-9.]+)", 65),
    ),
    "functional_net.py": (
        {},
        ["(epsilon = 7.99", "(round 10 of 10): proven"],
        None,
        ("test accuracy ([0-9.]+)", 75),
    ),
    "public_features.py": (
        {"epsilons": (1.0,), "shapes": 30, "epochs": 5},
        ["(epsilon = 0.999", "frozen weights of layer 'conv2d"],
        None,
        None,
    ),
    "train_on_a_release.py": (
        {"steps": 150},
        ["(epsilon = 3.999"],
        "digits_release.npz",
        ("([0-9.]+) .*test accuracy", 0),
    ),
    "beam_release.py": (
        {},
        ["(epsilon = 1.99"],
        None,
        ("test accuracy ([0-9.]+)", 60),
    ),
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an example in an empty folder; gives what it printed."""
    monkeypatch.chdir(tmp_path)

    def run_script(name, **small):
        """The whole script, or its `main` with smaller arguments."""
        path = str(EXAMPLES / name)
        if small:
            runpy.run_path(path)["main"](**small)
        else:
            runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run_script


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(name, run, tmp_path):
    if "beam" in name:
        pytest.importorskip("apache_beam")
    small, words, file, least = RUNS[name]
    printed = run(name, **small)
    for each in words:
        assert each in printed
    if file is not None:
        assert (tmp_path / file).stat().st_size > 100
    if least is not None:
        pattern, number = least
        found = [float(v) for v in re.findall(pattern, printed)]
        assert found and min(found) > number


def test_audit_your_model(run):
    printed = run("audit_your_model.py", records=600, epochs=40)
    right, wrong = printed.split("== trained layers")
    statement = "proven (epsilon = 0.999"
    assert statement in right and statement in wrong
    assert "verdict:     not refuted" in right
    # All but a few of 150 guesses are right; 83 % would be enough.
    assert "verdict:     violated at 95%" in wrong


def test_every_example_is_listed():
    page = EXAMPLES.parent / "docs" / "examples.md"
    listed = page.read_text(encoding="utf-8")
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    # Of a script with a training of its own, tests/lab has an audit.
    assert scripts == {*RUNS, "audit_your_model.py", "audit_a_script.py"}
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]:
        assert f"[{path.name}](../examples/{path.name})" in listed
