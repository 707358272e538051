"""What the commands share: numbers given in a flag."""

import pytest

from keras_fm.lab import cli
from keras_fm.lab.commands import command_line


def test_numbers_of_a_flag():
    assert command_line.numbers("epsilons", ["0.5", "8"]) == [0.5, 8.0]


@pytest.mark.parametrize("command", ["compare", "reproduce"])
def test_a_flag_without_numbers(command, capsys):
    assert cli.main([command, "--epsilons=1,two"]) == 2
    assert capsys.readouterr().err == (
        f"keras-fm {command}: `epsilons` must be numbers, separated by "
        "commas. Received: '1,two'\n"
    )
