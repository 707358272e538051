"""Which generators of random numbers a function could draw from, but its own.

What a record becomes may depend on that record and on a generator of its own.
A generator that several records share makes one record's view depend on how
many others there are.
"""

import functools
import random
import sys
import types

import numpy as np

# Objects that are looked at in what a function holds.
_MOST = 10_000
# Whose code draws from global generators alone, or from Keras variables.
_KNOWN = ("jax", "keras", "keras_fm", "numpy", "tensorflow", "torch")
_PLAIN = (str, bytes, int, float, np.ndarray, np.generic, type(None))


class OtherGenerators:
    """The global generators, and those that a function holds or names.

    Args:
        function: any callable.
    """

    def __init__(self, function):
        self._held = list(_held(function))

    def states(self):
        """The state of each, as values to compare."""
        found = [np.random.get_state(legacy=False), random.getstate()]
        torch = sys.modules.get("torch")
        if hasattr(torch, "get_rng_state"):
            found.append(torch.get_rng_state().numpy())
            if torch.cuda.is_initialized():
                found += [v.numpy() for v in torch.cuda.get_rng_state_all()]
        found.append(_of_tensorflow())
        found += [_state(generator) for generator in self._held]
        return _plain(found)


def _of_tensorflow():
    """What `tf.random.set_seed` began, if anything: no public name has it."""
    eager = sys.modules.get("tensorflow.python.eager.context")
    found = getattr(getattr(eager, "_context", None), "_rng", None)
    return None if found is None else found.getstate()


def _plain(state):
    if isinstance(state, dict):
        return tuple((key, _plain(value)) for key, value in state.items())
    if isinstance(state, list):
        return tuple(map(_plain, state))
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _kinds():
    """Kinds of generators, and what gives their state."""
    yield np.random.Generator, lambda g: g.bit_generator.state
    yield np.random.BitGenerator, lambda g: g.state
    yield np.random.RandomState, lambda g: g.get_state(legacy=False)
    yield random.SystemRandom, lambda g: None
    yield random.Random, lambda g: g.getstate()
    torch, tf = map(sys.modules.get, ("torch", "tensorflow"))
    if hasattr(torch, "Generator"):
        yield torch.Generator, lambda g: g.get_state().cpu().numpy()
    if hasattr(tf, "random"):
        yield tf.random.Generator, lambda g: g.state.numpy()


def _state(generator):
    return next(
        state(generator)
        for kind, state in _kinds()
        if isinstance(generator, kind)
    )


def _held(function):
    """Yields the generators among what a function holds: closures, defaults,
    globals and attributes that its code names, and what these hold."""
    kinds = tuple(kind for kind, _ in _kinds())
    waiting, seen = [(function, frozenset())], {}
    while waiting and len(seen) < _MOST:
        value, names = waiting.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        # Kept, so that nothing else gets its id.
        seen[id(value)] = value
        if isinstance(value, kinds):
            yield value
        elif not _is_known(value):
            waiting += _inside(value, names)


def _is_known(value):
    if isinstance(value, types.BuiltinFunctionType | types.ModuleType):
        return False
    named = isinstance(value, types.FunctionType | type)
    home = (value if named else type(value)).__module__
    return str(home).partition(".")[0] in _KNOWN


def _inside(value, names):
    """Pairs of what an object holds, and the names that code knows it by."""
    if isinstance(value, types.FunctionType):
        names = names | _names(value.__code__)
        cells = value.__closure__ or ()
        found = [
            *(v for k, v in value.__globals__.items() if k in names),
            *(cell.cell_contents for cell in cells if _is_filled(cell)),
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
        ]
    elif isinstance(value, types.MethodType):
        found = [value.__func__, value.__self__]
    elif isinstance(value, functools.partial):
        found = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.ModuleType | type):
        found = [v for k, v in vars(value).items() if k in names]
    elif isinstance(value, dict):
        found = list(value.values())[:_MOST]
    elif isinstance(value, (list, tuple, set)):
        found = list(value)[:_MOST]
    elif isinstance(value, types.BuiltinFunctionType):
        # `random.random` and `rng.normal` are methods of a generator.
        found = [value.__self__]
    else:
        found = list(getattr(value, "__dict__", {}).values())
        for kind in type(value).__mro__:
            if not _is_known(kind) and kind.__module__ != "builtins":
                found += [
                    getattr(v, "__func__", v) for v in vars(kind).values()
                ]
    return [(part, names) for part in found]


def _is_filled(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names(code):
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))
