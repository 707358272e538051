"""The examples run, and what they print is composed from a ledger."""

import pathlib
import runpy

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


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


def test_first_private_model(run, tmp_path):
    printed = run("first_private_model.py")
    assert "proven:     (epsilon = 1.99" in printed
    assert "random weights (fourier, seed 0)" in printed
    assert (tmp_path / "private_digits.keras").exists()


def test_adlm_relevance(run, tmp_path):
    printed = run("adlm_relevance.py")
    assert "proven:     (epsilon = 3.99" in printed
    assert "scaling (relevance): proven" in printed
    assert "claimed:    (epsilon = 4," in printed
    assert "proven:     (epsilon = inf" in printed
    assert (tmp_path / "relevance.png").read_bytes()[:4] == b"\x89PNG"


def test_private_autoencoder(run, tmp_path):
    printed = run("private_autoencoder.py")
    assert "proven:     (epsilon = 3.99" in printed
    assert "encoder_1 (moments): proven" in printed
    errors = [
        float(line.split()[place])
        for line, place in (
            (next(x for x in printed.splitlines() if x.startswith(start)), at)
            for start, at in (("mean squared", 3), ("16 tanh", -1))
        )
    ]
    # The mean image has 0.073.
    assert errors[0] < 0.03 and errors[1] < 0.06
    png = tmp_path / "private_autoencoder.png"
    assert png.read_bytes()[:4] == b"\x89PNG"


def test_behavior_prediction(run):
    printed = run("behavior_prediction.py")
    assert "by declaration one user with all windows\n" in printed
    assert "proven:     (epsilon = 7.99" in printed
    accuracy = float(printed.split("days: ")[1].split()[0])
    assert accuracy > 65  # the larger class has 50 to 55 %


def test_cdbn_filters(run, tmp_path):
    printed = run("cdbn_filters.py")
    assert "proven:     (epsilon = 7.99" in printed
    assert "crbm_2 (patch moments): proven" in printed
    accuracy = float(printed.split("test accuracy ")[1].split()[0])
    assert accuracy > 0.5  # chance is 0.1
    assert (tmp_path / "cdbn_filters.png").read_bytes()[:4] == b"\x89PNG"


def test_dp_mac(run):
    printed = run("dp_mac.py")
    accuracies = {
        line.split(":")[0]: float(line.split("accuracy ")[1].split()[0])
        for line in printed.splitlines()
        if "test accuracy" in line
    }
    assert set(accuracies) == {"one read", "40 reads", "DP-MAC"}
    # Fresh noise; ten classes.
    assert min(accuracies.values()) > 65
    assert "proven:     (epsilon = 1.99" in printed


def test_functional_net(run):
    printed = run("functional_net.py")
    assert "proven:     (epsilon = 7.99" in printed
    assert "(round 10 of 10): proven" in printed
    accuracy = float(printed.split("test accuracy ")[1].split()[0])
    assert accuracy > 75
    # Every theorem's epsilon is above the one that is reported.
    rows = [line.split() for line in printed.splitlines()]
    known = {
        row[0]: row[1]
        for row in rows
        if row[3:4] == ["bound"] and row[1] != "-"
    }
    assert float(known["pld"]) <= 8.01
    assert all(float(v) >= 7.9 for v in known.values())


def test_public_features(run):
    printed = run("public_features.py", epsilons=(1.0,), shapes=30, epochs=5)
    assert "proven:     (epsilon = 0.999" in printed
    note = "public by declaration: frozen weights of layer 'conv2d"
    assert printed.count(note) == 2
    row = next(x for x in printed.splitlines() if x.startswith("epsilon 1"))
    # Fresh noise; chance is 10.
    assert min(float(word) for word in row.split()[2:]) > 30


def test_train_on_a_release(run, tmp_path):
    printed = run("train_on_a_release.py", steps=150)
    assert "proven:     (epsilon = 3.999" in printed
    assert (tmp_path / "digits_release.npz").exists()
    lines = [x for x in printed.splitlines() if "test accuracy" in x]
    assert len(lines) == 3
    # Three ways to train on one file; one read of the records.
    assert min(float(x.split()[-2]) for x in lines) > 60
    assert "[1] " in printed and "[2] " not in printed


def test_audit_your_model(run):
    printed = run("audit_your_model.py", records=600, epochs=40)
    right, wrong = printed.split("== trained layers")
    statement = "proven (epsilon = 0.999"
    assert statement in right and statement in wrong
    assert "verdict:     not refuted" in right
    # All but a few of 150 guesses are right; 83 % would be enough.
    assert "verdict:     violated at 95%" in wrong


def test_every_example_is_tested_and_listed():
    """Here, or where a package is asked for that only some have."""
    folder = pathlib.Path(__file__).parent
    tests = "".join(
        path.read_text(encoding="utf-8") for path in folder.rglob("test_*.py")
    )
    page = EXAMPLES.parent / "docs" / "examples.md"
    listed = page.read_text(encoding="utf-8")
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]:
        # Notebooks are found and run by tests/test_docs.py.
        assert path.suffix == ".ipynb" or f'"{path.name}"' in tests, path.name
        assert f"[{path.name}](../examples/{path.name})" in listed


def test_beam_release(run):
    pytest.importorskip("apache_beam")
    printed = run("beam_release.py")
    assert "proven:     (epsilon = 1.99" in printed
    # The noise has a standard deviation of 23.
    records = float(printed.split("by the release: ")[1].split()[0])
    assert abs(records - 1437) < 160
    accuracy = float(printed.split("test accuracy ")[1].split()[0])
    assert accuracy > 60  # fresh noise; chance is 10
