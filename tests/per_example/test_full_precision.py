"""Steps that clip multiply in full float32, whatever is set around them."""

import contextlib

import keras
import numpy as np
import pytest
from keras import layers as L

import keras_fm as fm
from keras_fm.core import full_precision
from keras_fm.per_example.given_records import GivenRecords

pytestmark = [pytest.mark.full, pytest.mark.backend]

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)


# What people set --------------------------------------------------------------


@contextlib.contextmanager
def policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def torch_precision(set_it):
    import torch

    set_it(torch)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.fp32_precision = "none"
        for kind in (torch.backends.mkldnn, torch.backends.cuda):
            kind.matmul.fp32_precision = "none"
        torch.backends.mkldnn.conv.fp32_precision = "none"


@contextlib.contextmanager
def jax_option(name, value):
    import jax

    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _autocast(dtype):
    import torch

    return torch.autocast("cpu", dtype=getattr(torch, dtype))


AROUND = {
    "nothing": contextlib.nullcontext,
    "mixed policy": lambda: policy("mixed_bfloat16"),
}
if BACKEND == "torch":
    AROUND |= {
        "autocast": lambda: _autocast("bfloat16"),
        "autocast to half": lambda: _autocast("float16"),
        "medium": lambda: torch_precision(
            lambda torch: torch.set_float32_matmul_precision("medium")
        ),
        "all of bfloat16": lambda: torch_precision(
            lambda torch: setattr(torch.backends, "fp32_precision", "bf16")
        ),
    }
if BACKEND == "jax":
    AROUND |= {
        # The second is one that a processor refuses.
        "bfloat16": lambda: jax_option(
            "jax_default_matmul_precision", "bfloat16"
        ),
        "half": lambda: jax_option(
            "jax_default_matmul_precision", "F16_F16_F32"
        ),
        "rbg": lambda: jax_option("jax_default_prng_impl", "rbg"),
        "unsafe_rbg": lambda: jax_option("jax_default_prng_impl", "unsafe_rbg"),
    }


# What a clipped record adds ---------------------------------------------------


def _alike():
    """Every number is rounded up, to 8 digits, by nearly half a unit."""
    x = np.full((1, 64), 8 * (1 + 2**-8 + 2**-12), "float32")
    return x, [L.Dense(3, kernel_initializer="zeros")]


def _cancelling():
    """Positions that cancel, all but a tenth."""
    x = np.full((1, 8, 16), 100, "float32")
    x[:, ::2] = -110
    return x, [L.Conv1D(64, 1), L.GlobalAveragePooling1D(), L.Dense(3)]


def _noise():
    x = RNG.normal(size=(1, 6, 6, 3)).astype("float32") * 10
    net = [L.Conv2D(8, 3, activation="tanh"), L.Dropout(0.2), L.Flatten()]
    return x, [*net, L.Dense(3)]


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("record", [_alike, _cancelling, _noise])
def test_no_record_moves_a_step_by_more_than_its_clip(record, around):
    """A fit inside `torch.autocast` (of whoever trains in bfloat16) moved the
    weights by 1.19 clips for one record."""
    keras.utils.set_random_seed(7)
    x, layers = record()
    if around == "mixed policy":
        layers = [type(v).from_config(v.get_config()) for v in layers]
    model = fm.models.GradientNet(x.shape[1:], layers, clip=1.0)
    model.compile(keras.optimizers.SGD(1.0))
    before = model.get_weights()
    with AROUND[around]():
        model.fit(
            x, np.array([1]), batch_size=1, callbacks=[_callback()], verbose=0
        )
    moved = [a - b for a, b in zip(model.get_weights(), before)]
    norm = np.sqrt(sum(np.sum(np.float64(v) ** 2) for v in moved))
    assert 0.9 < norm <= 1


X, Y = RNG.normal(size=(40, 4)).astype("float32"), np.arange(40) % 3


def _network(**kwargs):
    keras.utils.set_random_seed(3)
    net = [L.Dense(8, activation="tanh"), L.Dropout(0.1), L.Dense(3)]
    model = fm.models.GradientNet((4,), net, **kwargs)
    model.compile(keras.optimizers.SGD(0.5))
    return model


def _callback(**kwargs):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(8.0, 1e-5), reproducible_noise=0, **kwargs
    )


@pytest.mark.parametrize("around", AROUND)
def test_noisy_steps_are_the_same_in_all_surroundings(around):
    """With JAX's other random numbers, and where PyTorch's new settings are
    mixed with the old, a fit stopped after its steps were paid for."""

    def fitted(scope):
        model, private = _network(), _callback()
        with scope():
            model.fit(
                X, Y, batch_size=20, epochs=2, callbacks=[private], verbose=0
            )
        (entry,) = private.ledger.entries
        return model.get_weights(), entry.mechanism

    found, mechanism = fitted(AROUND[around])
    right, known = fitted(contextlib.nullcontext)
    assert mechanism == known
    for one, other in zip(found, right):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("around", AROUND)
def test_exact_releases_are_the_same_in_all_surroundings(around):
    """What frozen layers make of records, and the steps on the release."""

    def fitted(scope):
        keras.utils.set_random_seed(3)
        below = L.Dense(16, activation="tanh", trainable=False)
        head = fm.layers.PrivateDense(3, feature_bound=4.0)
        model = keras.Sequential([keras.Input((4,)), below, head])
        model.compile(
            keras.optimizers.SGD(0.5), loss=fm.losses.TaylorCrossEntropy()
        )
        private = _callback(data=(X, Y))
        with scope():
            model.fit(X, Y, epochs=2, callbacks=[private], verbose=0)
        return model.get_weights()

    found, right = fitted(AROUND[around]), fitted(contextlib.nullcontext)
    for one, other in zip(found, right):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX says it in the program")
def test_every_product_of_a_step_says_how_it_is_taken():
    """So cards and TPUs, which round by default, take it in full."""
    import jax

    net = [L.Conv2D(8, 3, activation="tanh"), L.Flatten(), L.Dense(3)]
    model = fm.models.GradientNet((6, 6, 1), net)
    model.compile("sgd")
    x, y = np.ones((2, 6, 6, 1), "float32"), np.array([0, 1])
    made = model.map_for(GivenRecords(x, y), (x, y))
    keys = np.ones((2, *made.key_shape), "int32")
    with full_precision.scope():
        program = str(
            jax.make_jaxpr(lambda x: made.sums(x, y, keys, np.ones(2, "f4")))(x)
        )
    products = program.count("dot_general[") + program.count(
        "conv_general_dilated["
    )
    assert products > 3
    assert (
        program.count("precision=(Precision.HIGHEST")
        + program.count("precision=Precision.HIGHEST")
        == products
    ), program


# What is refused --------------------------------------------------------------


def _refused(match):
    model, private = _network(), _callback()
    with pytest.raises(ValueError, match=match):
        model.fit(X, Y, batch_size=5, callbacks=[private], verbose=0)
    assert not private.ledger.entries


@pytest.fixture
def card(monkeypatch):
    """A device that rounds, as its library presents it; gives what has it
    round no more."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        listed = tf.config.list_physical_devices
        monkeypatch.setattr(
            tf.config,
            "list_physical_devices",
            lambda kind=None: ["a card"] if kind == "GPU" else listed(kind),
        )
        rounds = tf.config.experimental.enable_tensor_float_32_execution
        yield lambda: rounds(False)
        rounds(True)
    else:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
        yield lambda: monkeypatch.setattr(
            torch.backends.cudnn, "allow_tf32", False
        )


@pytest.mark.skipif(BACKEND == "jax", reason="every product says it")
def test_a_card_that_rounds_is_refused_before_anything_is_spent(card):
    _refused("Before the fit, write `")
    card()
    full_precision.check()


@pytest.mark.skipif(BACKEND != "torch", reason="settings of PyTorch")
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_a_card_that_was_told_in_the_new_words(card, kind):
    """Reading the old ones then is an error of PyTorch's own."""
    import torch

    card()
    told = {"matmul": torch.backends.cuda.matmul, "conv": None}[kind]
    told = told or torch.backends.cudnn.conv
    before = told.fp32_precision
    told.fp32_precision = "tf32"
    try:
        _refused("TensorFloat-32")
    finally:
        told.fp32_precision = before


@pytest.mark.skipif(BACKEND != "torch", reason="settings of PyTorch")
def test_settings_around_are_left_as_they_were():
    import torch

    matmul, everything = torch.backends.mkldnn.matmul, torch.backends
    with torch_precision(lambda torch: None):
        everything.fp32_precision = "bf16"
        assert matmul.fp32_precision == "bf16"
        with full_precision.scope():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "bf16"
        # It follows the one that it followed.
        everything.fp32_precision = "none"
        assert matmul.fp32_precision == "none"
        torch.set_float32_matmul_precision("high")
        with full_precision.scope():
            assert matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "high"
        assert matmul.fp32_precision == "tf32"


@pytest.mark.skipif(BACKEND != "tensorflow", reason="options of TensorFlow")
def test_rewritten_graphs_are_refused():
    """TensorFlow's own mixed precision, which casts products by itself."""
    import tensorflow as tf

    options = tf.config.optimizer.set_experimental_options
    options({"auto_mixed_precision": True})
    try:
        _refused('"auto_mixed_precision": False')
    finally:
        options({"auto_mixed_precision": False})
    full_precision.check()


@pytest.mark.parametrize("product", ["matmul", "conv"])
def test_a_device_that_rounds_unasked_is_refused(monkeypatch, product):
    """An environment variable of oneDNN has processors take bfloat16."""
    right = getattr(keras.ops, product)

    def rounded(a, b, **kwargs):
        a = keras.ops.cast(keras.ops.cast(a, "bfloat16"), "float32")
        return right(a, b, **kwargs)

    full_precision.check()
    monkeypatch.setattr(keras.ops, product, rounded)
    _refused("relative error of 0.00")
