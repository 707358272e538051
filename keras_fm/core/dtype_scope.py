"""The dtype policy of models that make their own layers."""

import contextlib

import keras


def config(model):
    """The entry of `get_config` for a model's dtype policy."""
    return {"dtype": keras.dtype_policies.serialize(model.dtype_policy)}


@contextlib.contextmanager
def of(config):
    """Makes layers of the policy in a config, and removes it from there.

    Args:
        config: dict; `"dtype"` is removed. Without one, as in configs of
            earlier files, the policy in force stays.
    """
    policy = config.pop("dtype", None)
    before = keras.config.dtype_policy()
    if policy is not None:
        keras.config.set_dtype_policy(keras.dtype_policies.get(policy))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
