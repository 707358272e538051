"""Weights that a record only multiplies, in any layer, once or several times.

Of a product u W with derivative d at it, the gradient is the sum of u_p d_p^T
over places, as of a `Dense` layer; places of several products count as places
of one. Of a product with the turned weight, u and d change roles.
"""

import itertools
import math
import re
import string
from typing import NamedTuple

import keras
import numpy as np

from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.affine_maps import UNDERFLOW, ConvolutionMap, Part
from keras_fm.per_example.windows import cuts

# Operations that keep a weight's entries in order, or turn a matrix: of JAX, of
# TensorFlow, of PyTorch.
_KEEP = {"convert_element_type", "reshape", "Identity", "Cast", "to"}
_KEEP |= {"Reshape", "ExpandDims"}
_TURN = {"transpose", "Transpose", "T"}


class Use(NamedTuple):
    """One product with a weight.

    Attributes:
        rows: of the weight as a matrix.
        places: of a record.
        turned: whether the product is with the turned matrix.
    """

    rows: int
    places: int
    turned: bool


class ProductWeight:
    """A weight with all its products, as `GhostLayer` has a layer.

    Args:
        variable: the weight.
        uses: list of `Use`.
    """

    layer, reads_tokens = None, False

    def __init__(self, variable, uses):
        self.variables = [variable]
        self.map = ProductMap(variable.shape, uses)
        self.probe_shape = self.map.output_shape


class ProductMap(ConvolutionMap):
    """The coefficients of a weight. Inputs and derivatives are those of all
    its products, one after the other.

    Args:
        shape: of the weight.
        uses: list of `Use`.
    """

    def __init__(self, shape, uses):
        self._shape, self.uses = tuple(shape), list(uses)
        rows = uses[0].rows
        self._sides = rows, math.prod(shape) // rows
        places = sum(use.places for use in uses)
        self.has_few = places == len(uses)
        part = Part(filters=self._sides[1], use_bias=False)
        super().__init__(None, (places, rows), part)
        self._sizes = [
            [use.places * self._sides[side ^ use.turned] for use in uses]
            for side in (0, 1)
        ]
        self.input_shape, self.output_shape = (
            (sum(sizes),) for sizes in self._sizes
        )
        self.held += self.input_shape[0]

    def parts(self, values, side):
        """Of the inputs (0) or outputs (1) of records those of each product."""
        ends = list(itertools.accumulate(self._sizes[side][:-1]))
        # Keras' split on PyTorch needs an end.
        return ops.split(values, ends, axis=1) if ends else [values]

    def measured(self, inputs, delta):
        found = [], []
        for use, *pair in zip(
            self.uses, self.parts(inputs, 0), self.parts(delta, 1)
        ):
            for to, part in enumerate(pair[:: -1 if use.turned else 1]):
                shape = (-1, use.places, self._sides[to])
                found[to].append(ops.reshape(part, shape))
        pair = [ops.concatenate(v, axis=1) for v in found]
        return super().measured(
            *(pair if len(self.uses) == 1 else _even(*pair))
        )

    def sums_of(self, found, scale):
        return [ops.reshape(*self.coefficients(found, scale), self._shape)]


def _even(inputs, delta):
    """Both with equal lengths at each place, of the same products. Otherwise
    long inputs of one use and long derivatives of another one would make the
    allowance for rounding large."""
    squares = [
        ops.sum(ops.square(v), axis=-1, keepdims=True) + UNDERFLOW
        for v in (inputs, delta)
    ]
    # Of a length of 0 beside a huge one, a quotient may be 0 or infinite.
    share = ops.clip(ops.sqrt(ops.sqrt(squares[1] / squares[0])), 1e-9, 1e9)
    return inputs * share, delta / share


class Seen(NamedTuple):
    """A weight as a function sees it.

    Attributes:
        at: its place in the list of weights.
        shape: of the tensor.
        turned: whether it is the turned matrix.
    """

    at: int
    shape: tuple
    turned: bool = False

    def after(self, name, result):
        """As it is seen after an operation; `None` if it is not followed."""
        shape = tuple(result.shape)
        if "float" not in str(result.dtype):
            return None
        if name in _TURN and len(shape) == 2:
            return Seen(self.at, shape, not self.turned)
        kept = name in _KEEP and not self.turned
        return Seen(self.at, shape) if kept else None


class Products:
    """The products with some weights, met while a function runs.

    Args:
        weights: list of tensors.
        probes: of each weight a list of numbers `(1, entries)` that are added
            to its products. `None`: nothing is added.

    Attributes:
        uses: of each weight a list of `Use`, or `None` if it is used otherwise.
        reads: of each weight a list of `(1, entries)`.
        outputs: of each weight a list of pairs of a product, and the order of
            its axes in which places come first.
    """

    def __init__(self, weights, probes=None):
        self.weights = weights
        self._probes = [iter(v) for v in probes or [()] * len(weights)]
        self.uses, self.reads, self.outputs = (
            [[] for _ in weights] for _ in range(3)
        )

    def seen(self):
        """The weights themselves."""
        return [Seen(at, tuple(v.shape)) for at, v in enumerate(self.weights)]

    def otherwise(self, seen):
        """Weights are used, and not in a product."""
        for one in filter(None, seen):
            self.uses[one.at] = None

    def met(self, seen, equation, x, z):
        """A product of `x` and a weight, and what takes the place of its
        result `z`. The equation is that of an `einsum`."""
        names = _names(equation)
        if not names or self.uses[seen.at] is None:
            self.otherwise([seen])
            return z
        inputs, weight, outputs, common = names
        sizes = dict(zip(inputs + weight, (*x.shape, *seen.shape)))
        places, free = (
            [c for c in part if c not in common] for part in (inputs, weight)
        )

        def size(letters):
            return math.prod(sizes[c] for c in letters)

        turned = seen.turned ^ (weight[0] not in common)
        rows, order = size(free if turned else common), places + free
        read = ops.transpose(x, [inputs.index(c) for c in (*places, *common)])
        self.uses[seen.at].append(Use(rows, size(places), turned))
        self.reads[seen.at].append(ops.reshape(read, (1, -1)))
        self.outputs[seen.at].append((z, [outputs.index(c) for c in order]))
        probe = next(self._probes[seen.at], None)
        if probe is None:
            return z
        probe = ops.reshape(probe, [sizes[c] for c in order])
        probe = ops.transpose(probe, [order.index(c) for c in outputs])
        return z + ops.cast(probe, z.dtype)

    def met_convolution(self, seen, x, z, strides, pads):
        """As `met`, on JAX, of a convolution with channels last: a product
        with what its kernel reads at each place."""
        *size, channels, filters = seen.shape
        if seen.turned or x.shape[-1] != channels:
            self.otherwise([seen])
            return z
        x = ops.concatenate(cuts(x, size, strides, pads), axis=-1)
        seen = seen._replace(shape=(x.shape[-1], filters))
        # In a loop, XLA's derivative of the convolution takes longer.
        weight = ops.reshape(self.weights[seen.at], seen.shape)
        z = ops.matmul(x, ops.cast(weight, z.dtype))
        return self.met(seen, _matrices(x, 2), x, z)


def _names(equation):
    """The axes of input, weight and output of a product, and those that are
    summed over; `None` if the weight is no matrix there."""
    inputs, _, rest = equation.replace(" ", "").partition(",")
    weight, _, outputs = rest.partition("->")
    common = "".join(c for c in weight if c in inputs)
    free = "".join(c for c in weight if c not in inputs)
    fits = (
        common
        and free
        and weight in (common + free, free + common)
        and len({*inputs}) == len(inputs)
        and sorted(outputs) == sorted({*inputs, *weight} - {*common})
    )
    return (inputs, weight, outputs, common) if fits else None


def found_in(function, weights):
    """Of each weight the list of its `Use`s, or `None` if they are not all
    products with one matrix.

    Args:
        function: of a list of tensors; gives a tree of tensors.
        weights: the tensors.
    """
    found = []

    def run(weights):
        products = Products(weights)
        watched(function, products)
        found.extend(products.uses)
        return ops.zeros(())

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        jax.eval_shape(run, weights)
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.function(run, autograph=False).get_concrete_function(weights)
    else:
        run(weights)
    return [
        None if uses and len({use.rows for use in uses}) > 1 else uses
        for uses in found
    ]


def watched(function, products):
    """The result of a function of weights, while their products are met.

    Args:
        function: of a list of tensors; gives a tree of tensors.
        products: `Products`; without probes on TensorFlow, where it must run
            in a graph.
    """
    by = {"jax": _in_jaxpr, "tensorflow": _in_graph, "torch": _in_calls}
    return by[keras.backend.backend()](function, products)


def _matrices(x, rank, turned=False):
    """The equation of a product of matrices."""
    places = string.ascii_lowercase[: len(x.shape) - 1]
    if rank != 2:
        return ""
    return f"{places}y,{'zy' if turned else 'yz'}->{places}z"


def _in_jaxpr(function, products):
    """Runs what JAX traces, one operation after the other."""
    import jax

    closed, shape = jax.make_jaxpr(function, return_shape=True)(
        products.weights
    )
    jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts))
    values.update(zip(jaxpr.invars, products.weights))
    known = dict(zip(jaxpr.invars, products.seen()))

    def of(variables):
        """Their values, and the weights that they are."""
        are_literals = [hasattr(v, "val") for v in variables]
        pairs = list(zip(variables, are_literals))
        return (
            [v.val if literal else values[v] for v, literal in pairs],
            [None if literal else known.get(v) for v, literal in pairs],
        )

    for eqn in jaxpr.eqns:
        given, seen = of(eqn.invars)
        params = eqn.primitive.get_bind_params(eqn.params)
        found = eqn.primitive.bind(*given, **params)
        many = eqn.primitive.multiple_results
        if any(seen):
            name = eqn.primitive.name
            after = not many and seen[0] and seen[0].after(name, found)
            if after:
                known[eqn.outvars[0]] = after
            elif name == "dot_general" and None in seen:
                at = seen.index(None)
                equation = _dotted(params["dimension_numbers"], given, at)
                found = products.met(seen[1 - at], equation, given[at], found)
            elif name == "conv_general_dilated" and _is_plain(params, seen):
                found = products.met_convolution(
                    seen[1],
                    given[0],
                    found,
                    params["window_strides"],
                    params["padding"],
                )
            else:
                products.otherwise(seen)
        values.update(zip(eqn.outvars, found if many else [found]))
    outputs, _ = of(jaxpr.outvars)
    return jax.tree.unflatten(jax.tree.structure(shape), outputs)


def _dotted(dimensions, given, at):
    """The equation of JAX's `dot_general`, with its input at a place."""
    summed, (batches, _) = dimensions
    letters = iter(string.ascii_letters)
    names = [[next(letters) for _ in v.shape] for v in given]
    for one, other in zip(*summed):
        names[1][other] = names[0][one]
    free = {*names[0]} ^ {*names[1]}
    free = [c for v in names for c in v if c in free and not batches]
    return "".join([*names[at], ",", *names[1 - at], "->", *free])


def _is_plain(params, seen):
    """Whether a convolution of JAX has channels last, one group and no
    dilation."""
    last = len(params["window_strides"]) + 1
    images = (0, last, *range(1, last))
    kernel = (last, last - 1, *range(last - 1))
    return (
        seen[0] is None
        and tuple(params["dimension_numbers"]) == (images, kernel, images)
        and {*params["lhs_dilation"], *params["rhs_dilation"]} == {1}
        and params["feature_group_count"] == params["batch_group_count"] == 1
    )


def _in_graph(function, products):
    """Looks at the graph when it is made."""
    import tensorflow as tf

    products.weights = [tf.identity(v) for v in products.weights]
    result = function(products.weights)
    for weight, seen in zip(products.weights, products.seen()):
        known = [(weight, seen)]
        for tensor, seen in known:
            for op in tensor.consumers():
                turns = op.type != "Transpose" or np.array_equal(
                    tf.get_static_value(op.inputs[1]), [1, 0]
                )
                after = turns and seen.after(op.type, op.outputs[0])
                if after:
                    known.append((op.outputs[0], after))
                else:
                    equation = _multiplied(op, tensor)
                    products.met(seen, equation, op.inputs[0], op.outputs[0])
    return result


def _multiplied(op, weight):
    """The equation of a TensorFlow product with a weight, its second input."""
    if [v is weight for v in op.inputs] != [False, True]:
        return ""
    if op.type == "Einsum":
        return op.get_attr("equation").decode()
    for kind, *names in (
        ("MatMul", "transpose_a", "transpose_b"),
        ("BatchMatMulV", "adj_x", "adj_y"),
    ):
        if op.type.startswith(kind):
            first, second = map(op.get_attr, names)
            x, rank = op.inputs[0], len(weight.shape)
            return "" if first else _matrices(x, rank, second)
    return ""


def _in_calls(function, products):
    """Watches the calls of PyTorch's functions."""
    import torch
    from torch.overrides import TorchFunctionMode

    weights = products.weights = [v.detach() for v in products.weights]
    # With the tensors, of which no other one may get the identity.
    known = {id(v): (v, s) for v, s in zip(weights, products.seen())}

    def seen_in(values):
        for v in values:
            if type(v) in (list, tuple):
                yield from seen_in(v)
            elif id(v) in known:
                yield known[id(v)][1]

    def equation_of(name, args):
        if name in ("matmul", "linear") and len(args) == 2:
            return _matrices(args[0], args[1].ndim, name == "linear")
        return args[0] if name == "einsum" and len(args) == 3 else ""

    def plain(value):
        if type(value) in (list, tuple):
            return type(value)(map(plain, value))
        if not isinstance(value, keras.Variable):
            return value
        # Keras may cast it, which counts.
        with Calls():
            return value.value

    class Calls(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            args = plain(tuple(args))
            kwargs = {k: plain(v) for k, v in (kwargs or {}).items()}
            found = func(*args, **kwargs)
            seen = list(seen_in((*args, *kwargs.values())))
            name = getattr(func, "__name__", "")
            if name == "__setitem__" or re.fullmatch(r"[a-z].*_|__i.*", name):
                # It may change a weight in place.
                products.otherwise(seen)
            if not seen or id(found) in known:
                return found
            if func == torch.Tensor.T.__get__:
                name = "T"
            if name == "transpose" and (kwargs or (args[1] - args[2]) % 2 == 0):
                name = ""
            if isinstance(found, torch.Tensor):
                after = seen[0].after(name, found)
                if after:
                    known[id(found)] = found, after
                    return found
                equation = equation_of(name, args)
                if equation and len(seen) == 1 and id(args[-1]) in known:
                    return products.met(seen[0], equation, args[-2], found)
            results = keras.tree.flatten(found)
            if any(isinstance(v, torch.Tensor) for v in results):
                # Not only a property, as its shape.
                products.otherwise(seen)
            return found

    with Calls():
        return function(weights)
