"""Exports a model, and runs what came out without Keras."""

import importlib.util

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()


def needs(*packages):
    missing = [p for p in packages if not importlib.util.find_spec(p)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")


def saved_model(model, path):
    needs("tensorflow")
    if BACKEND == "torch":
        pytest.skip("Keras exports PyTorch by torch_xla, which is archived")
    import tensorflow as tf

    model.export(path / "saved", verbose=False)
    loaded = tf.saved_model.load(path / "saved")
    return lambda x: loaded.serve(x).numpy()


def onnx(model, path):
    needs("onnxruntime", "tf2onnx" if BACKEND == "tensorflow" else "onnxscript")
    if BACKEND == "jax":
        pytest.skip("Keras exports JAX by TensorFlow")
    import onnxruntime

    file = str(path / "m.onnx")
    model.export(file, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(file)
    (given,) = session.get_inputs()
    return lambda x: session.run(None, {given.name: x})[0]


def litert(model, path):
    if BACKEND != "tensorflow":
        pytest.skip("Keras exports LiteRT from TensorFlow")
    import tensorflow as tf

    file = str(path / "m.tflite")
    model.export(file, format="litert", verbose=False)
    run = tf.lite.Interpreter(file).get_signature_runner()
    (name,) = run.get_input_details()
    return lambda x: next(iter(run(**{name: x}).values()))


FORMATS = (saved_model, onnx, litert)


def assert_same_when_exported(model, x, turn, path):
    """To one of the formats, the next one in the next turn. One record at a
    time: a runtime may have fixed their number."""
    run = FORMATS[turn % len(FORMATS)](model, path)
    found = np.concatenate([run(x[i : i + 1]) for i in range(2)])
    expected = model.predict(x[:2], verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
