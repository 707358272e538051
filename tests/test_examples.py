"""The examples run, and what they print is composed from a ledger."""

import pathlib
import runpy

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def test_first_private_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = EXAMPLES / "first_private_model.py"
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert "proven:     (epsilon = 1.99" in printed
    assert "random weights (fourier, seed 0)" in printed
    assert (tmp_path / "private_digits.keras").exists()


def test_adlm_relevance(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = EXAMPLES / "adlm_relevance.py"
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert "proven:     (epsilon = 3.99" in printed
    assert "scaling (relevance): proven" in printed
    assert "claimed:    (epsilon = 4," in printed
    assert "proven:     (epsilon = inf" in printed
    assert (tmp_path / "relevance.png").read_bytes()[:4] == b"\x89PNG"
