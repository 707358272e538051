"""The dtype policy of models that make their own layers."""

import contextlib

import keras


def config(model):
    """What `get_config` says of a model's dtype policy."""
    return {"dtype": keras.dtype_policies.serialize(model.dtype_policy)}


@contextlib.contextmanager
def of(config):
    """Makes layers of the policy that a config holds; takes it out.

    Args:
        config: dict; `"dtype"` is removed. Without one the policy in force
            stays: configs of earlier files.
    """
    policy = config.pop("dtype", None)
    before = keras.config.dtype_policy()
    if policy is not None:
        keras.config.set_dtype_policy(keras.dtype_policies.get(policy))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
