"""What arguments of layers and models are held to, and what that says."""

import pytest

from keras_fm.core import layer_arguments


def test_integers_of_layers_are_refused_in_the_words_of_keras():
    assert (
        layer_arguments.pair("size", 3)
        == (3, 3)
        == layer_arguments.pair("size", [3, 3])
    )
    for value in (0, 1.5, True, (1, 0), (1, 2, 3)):
        with pytest.raises(ValueError, match="`size`.* Received: size="):
            layer_arguments.pair("size", value)
    assert layer_arguments.odd("size", 5) == 5
    with pytest.raises(ValueError, match="a positive odd integer"):
        layer_arguments.odd("size", 4)


def test_sizes_of_a_record():
    assert layer_arguments.sizes("shape", [2, None]) == (2, None)
    for value in (12, "12", None, (0,), (2.0,), (True,)):
        with pytest.raises(ValueError, match="`shape` must be the shape"):
            layer_arguments.sizes("shape", value)


def test_settings_of_the_other_guarantee():
    layer_arguments.belongs("proven", "published", lot=(0, 0))
    layer_arguments.belongs("published", "published", lot=(5, 0))
    with pytest.raises(ValueError, match='`lot` belongs to guarantee="publ'):
        layer_arguments.belongs("proven", "published", lot=(5, 0))
