"""The arguments of the running `fit`.

Keras gives a callback only epochs, steps and verbosity. But other arguments
decide whether a fit matches its privacy statement (`class_weight`,
`validation_split`, a sibling callback that steers by a private metric). They
are read from the frame of the running `fit`; nothing is changed there.
"""

import inspect

import keras


def arguments(model):
    """Arguments of `model.fit` if it is on the call stack, else `None`."""
    frame = inspect.currentframe()
    while frame is not None:
        if (
            frame.f_code.co_name == "fit"
            and frame.f_locals.get("self") is model
        ):
            return dict(frame.f_locals)
        frame = frame.f_back
    return None


def callback_list(model):
    """Keras' list of the running fit's callbacks, or `None`."""
    found = (arguments(model) or {}).get("callbacks")
    if isinstance(found, keras.callbacks.CallbackList):
        return found
    return None


def callbacks(given):
    """The callbacks of a fit, whether still a list or wrapped by Keras."""
    found = given.get("callbacks") or []
    found = getattr(found, "callbacks", found)
    # One callback need not be in a list.
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _models_in(method):
    """The models whose method of that name is on the stack, innermost
    first."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == method:
            found = frame.f_locals.get("self")
            if isinstance(found, keras.Model):
                yield found
        frame = frame.f_back


def stateless_model():
    """The outermost model whose stateless call is on the stack, or `None`."""
    return next(reversed([*_models_in("stateless_call")]), None)


def is_trained(layer):
    """Whether a training step of a model with this layer is on the stack."""
    return any(
        any(held is layer for held in model._flatten_layers())
        for model in _models_in("train_step")
    )
