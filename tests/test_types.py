"""What a type checker may rely on; mypy itself runs with the style checks."""

import importlib.resources
import inspect

import pytest

import keras_fm as fm

pytestmark = pytest.mark.once

ENTRY_POINTS = [
    fm.PrivacyBudget,
    fm.Proven,
    fm.Published,
    fm.Unit,
    fm.audit,
    fm.callbacks.PrivateModel,
    fm.datasets.load,
    fm.estimators.PrivateClassifier,
    fm.estimators.PrivateRegressor,
    fm.evaluation.private_choice,
    fm.evaluation.private_evaluate,
    *(getattr(fm.layers, name) for name in fm.layers.__all__),
]


def without_type(function):
    """Parameters of a function that have no annotation."""
    # Keras' `__new__` hides the arguments of a layer.
    function = function.__init__ if inspect.isclass(function) else function
    parameters = list(inspect.signature(function).parameters.values())
    return [
        p.name
        for p in parameters
        if p.name != "self" and p.annotation is p.empty
    ]


@pytest.mark.parametrize("function", ENTRY_POINTS, ids=lambda f: f.__name__)
def test_the_arguments_of_an_entry_point_have_types(function):
    assert without_type(function) == []


def test_an_argument_without_a_type_is_seen():
    def partly(a: int, b, *, c=0):
        pass

    assert without_type(partly) == ["b", "c"]


def test_the_package_says_that_it_has_types():
    assert importlib.resources.files("keras_fm").joinpath("py.typed").is_file()
