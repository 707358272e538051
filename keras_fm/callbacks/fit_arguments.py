"""What the running `fit` was called with.

Keras tells a callback only epochs, steps and verbosity, but some arguments
decide whether a fit is what its privacy statement says (`class_weight`,
`validation_split`, a sibling callback that steers by a private metric). They
are read from the frame of the running `fit`; nothing is changed there.
"""

import inspect


def of_running_fit(model):
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


def callbacks(arguments):
    """The callbacks of a fit, whether still a list or wrapped by Keras."""
    found = arguments.get("callbacks") or []
    return list(getattr(found, "callbacks", found))
