"""What the running `fit` was called with.

Keras tells a callback only epochs, steps and verbosity, but some arguments
decide whether a fit is what its privacy statement says (`class_weight`,
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
    # One callback alone is no list.
    return list(found) if isinstance(found, (list, tuple)) else [found]


def stateless_model():
    """The model whose stateless call is on the stack, or `None`."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "stateless_call":
            found = frame.f_locals.get("self")
            if isinstance(found, keras.Model):
                return found
        frame = frame.f_back
    return None
