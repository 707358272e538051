"""Whether the features of a record depend on that record alone.

The sensitivity of a sum over records is the length of one record's part, and
holds only if no other part moves with it. Two checks, and both must pass: of
what every layer and operation is (`check_layers`), and of what the map does
with made-up records (`probe`).
"""

import keras

from keras_fm.parts.model_inputs import arranged, single
from keras_fm.parts.private_part import parts_of
from keras_fm.training import row_probe
from keras_fm.training.row_layers import check_layer, check_parts
from keras_fm.training.row_operations import check_operation
from keras_fm.training.row_probe import probe
from keras_fm.training.symbolic_call import (
    MixesError,
    SymbolicCall,
    UnknownError,
    UnlistedError,
)
from keras_fm.training.traced_layer import traced, traced_function

__all__ = ["NotPerRecordError", "check", "check_layers", "probe"]

# What runs a functional model; a class that has one of these may do anything.
_RUNS = frozenset(
    """
    __call__ call forward operation_fn inputs outputs symbolic_call
    quantized_call rematerialized_call _functional _run_through_graph
    _standardize_inputs _convert_inputs_to_tensors _adjust_input_rank
    _get_operation_for_node __getattribute__
    """.split()
)


class NotPerRecordError(ValueError):
    """A layer or an operation that mixes records, or may do so.

    Attributes:
        mixes: `True` if it is known to, `False` if nothing is known.
        name, kind: of the layer.
        reason: in words.
    """

    def __init__(self, message, mixes, operation, reason):
        super().__init__(message)
        self.mixes, self.reason = mixes, reason
        self.name, self.kind = operation.name, type(operation).__name__


def check(model, outputs, *, rows, declared=(), extractor=None):
    """Refuses a model in which a record's features depend on others.

    Args:
        model: a functional or sequential model, built.
        outputs: the symbolic tensor, or list of them, that is read.
        rows: int, rows of the batches that records are read in.
        declared: names of layers or operations, or of their classes, that
            are said to treat every record on its own.
        extractor: `None`, or the model from `model.inputs` to `outputs` that
            records will be read with, so that it is compiled once.

    Returns:
        list of str, what the statement must repeat; see `check_layers`.

    Raises:
        ValueError: naming the layer, the reason and what to write instead.

    Example:

    >>> x = keras.Input((4,))
    >>> model = keras.Model(x, keras.layers.Dense(3)(x / 255.0))
    >>> check(model, model.outputs, rows=256)
    []
    """
    outputs = keras.tree.flatten(outputs)
    walk = _walked(model, outputs, declared)
    inputs = list(model.inputs)
    if all(any(o is i for i in inputs) for o in outputs):
        return walk.notes
    if extractor is None:
        extractor = keras.Model(single(inputs), single(outputs))
    # What is known is tried once more; what is declared, in every way.
    row_probe.check_model(extractor, rows=rows, thorough=bool(walk.on_trust))
    for node in walk.on_trust:
        if isinstance(node.operation, keras.layers.Layer):
            _check_training(inputs, node, rows)
    return walk.notes


def _check_training(inputs, node, rows):
    """The probe of one call of a layer while it trains."""
    layer, read = node.operation, {id(t): t for t in node.input_tensors}
    below = keras.Model(single(inputs), single(list(read.values())))
    given = {
        key: keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype)
        for key, tensor in read.items()
    }
    args, kwargs = node.arguments.fill_in(given)
    count = len(layer._inbound_nodes)
    part = keras.Model(single(list(given.values())), layer(*args, **kwargs))
    # Keras' own way to cut a graph leaves its model unsaved.
    del layer._inbound_nodes[count:]
    row_probe.check_training(below, part, rows=rows)


def check_layers(
    model, outputs, *, declared=(), training=False, only_mixing=False
):
    """Refuses layers and operations that may mix the records of a batch.

    Every layer, with what it wraps, and every operation between the inputs
    of a model and `outputs` must be known to treat each record on its own,
    or be declared to. What is known to mix records is refused in any case.

    Args:
        model: a functional or sequential model, built.
        outputs: symbolic tensor of it, or list of them.
        declared: names, see `check`.
        training: whether records are read while training.
        only_mixing: whether what is not known passes.

    Returns:
        list of str: one line for each declared layer or operation.

    Raises:
        NotPerRecordError: a ValueError that names the layer, the reason and
            what to write instead.
        ValueError: if a declared name is none of the model's.

    Example:

    >>> x = keras.Input((4,))
    >>> y = keras.layers.Lambda(lambda v: v / 9, name="scale")(x)
    >>> check_layers(keras.Model(x, y), y, declared=("scale",))
    ["declared to treat every record on its own: layer 'scale' (Lambda)"]
    """
    return _walked(model, outputs, declared, training, only_mixing).notes


def _walked(model, outputs, declared, training=False, only_mixing=False):
    declared = (declared,) if isinstance(declared, str) else tuple(declared)
    outputs = keras.tree.flatten(outputs)
    inputs = list(getattr(model, "inputs", None) or ())
    if not inputs:
        raise ValueError(
            "The model must be functional or sequential, and begin with "
            "`keras.Input(shape)` or be built, so that its layers can be "
            f"seen. Received: {type(model).__name__}"
        )
    walk = _Walk(declared, training, only_mixing)
    walk.check_graph(inputs, outputs)
    missing = set(declared) - walk.names
    if missing:
        # It may be above what is read.
        everything = _Walk((), training, True)
        everything.collect(model)
        missing -= everything.names
    if missing:
        raise ValueError(
            "`per_record` must name layers or operations of the model, or "
            f"their classes. Received: {sorted(missing)}; the model has "
            f"{sorted(walk.names | everything.names)}"
        )
    return walk


class _Walk:
    """Visits the calls of a graph, from its inputs upwards.

    Attributes:
        names: of operations and their classes.
        on_trust: nodes of the outermost graph in which something is declared
            that is not known.
    """

    def __init__(self, declared, training, only_mixing):
        self._declared = frozenset(declared)
        self._training = training
        self._trusted = only_mixing
        self._outermost = None
        self.names, self.on_trust = set(), []
        self._declarations, self._read = {}, {}

    @property
    def notes(self):
        """For the statement, a list of str."""
        read = ", ".join(self._read)
        return [
            *self._declarations,
            *(
                ["code read as the calls of Keras that it makes: " + read]
                * bool(read)
            ),
        ]

    def collect(self, model):
        """Gathers the names in a model, whatever is above what is read."""
        operations = list(model._flatten_layers(include_self=False))
        for tensor in keras.tree.flatten(model.outputs):
            calls = _calls(list(model.inputs), [tensor])
            operations += [node.operation for node in calls]
        for operation in operations:
            self.names |= {operation.name, type(operation).__name__}

    def check_graph(self, inputs, outputs):
        rows = {tuple(tensor.shape)[:1] for tensor in inputs}
        if len(rows) != 1 or rows == {()}:
            raise ValueError(
                "Every input of the model must hold records along its first "
                "axis. Received inputs of shape "
                f"{[tuple(tensor.shape) for tensor in inputs]}"
            )
        (row,) = rows
        is_outermost = self._outermost is None
        for node in _calls(inputs, outputs):
            if is_outermost:
                self._outermost = node
            arguments = node.arguments
            if any(getattr(t, "ragged", False) for t in node.input_tensors):
                self._refuse(
                    node.operation,
                    True,
                    "ragged records are padded to the longest of a batch",
                )
            self._check_call(
                node.operation,
                arguments.args,
                arguments.kwargs,
                node.output_tensors,
            )
            if any(tuple(t.shape)[:1] != row for t in node.output_tensors):
                self._refuse(
                    node.operation,
                    True,
                    "records do not lie along the first axis of its output",
                )

    def _check_call(self, operation, args, kwargs, outputs=None):
        names = {operation.name, type(operation).__name__}
        self.names |= names
        trusted, self._trusted = (
            self._trusted,
            self._trusted or bool(names & self._declared),
        )
        if names & self._declared:
            self._declarations[
                "declared to treat every record on its own: "
                + _described(operation)
            ] = True
        call = SymbolicCall(
            operation, args, kwargs, self._check_inner, self._training
        )
        try:
            if not isinstance(operation, keras.layers.Layer):
                check_operation(call)
            elif isinstance(operation, keras.Model):
                self._check_model(call)
            else:
                check_layer(call)
        except MixesError as e:
            self._refuse(operation, True, str(e))
        except UnknownError as e:
            if not self._trusted:
                is_code = isinstance(e, UnlistedError) and not self._training
                # A part that will be released may compute another way then.
                if not is_code or parts_of(operation):
                    self._refuse(operation, False, str(e))
                self._check_code(call, outputs)
            else:
                self._check_trusted(operation)
                self._note_on_trust()
        finally:
            self._trusted = trusted

    def _check_code(self, call, outputs):
        """Looks at the calls that the code of a layer makes."""
        layer = call.operation
        self._check_trusted(layer)
        try:
            with traced(layer, call.args, call.kwargs, outputs) as graph:
                self.check_graph(*graph)
        except NotPerRecordError as e:
            # Several calls together may keep apart what one of them mixes.
            reason = f"in its `call`, '{e.name}' ({e.kind}): {e.reason}"
            self._refuse(layer, False, reason)
        except (UnknownError, ValueError) as e:
            self._refuse(layer, False, str(e))
        if not _is_of_applications(layer):
            kind = type(layer)
            own = f"{kind.__module__}.{kind.__qualname__}"
            if kind is keras.layers.Lambda:
                own = f"Lambda '{layer.name}'"
            self._note_read(own)

    def _check_trusted(self, operation):
        """What is known to mix is refused inside of what is declared, too."""
        if isinstance(operation, keras.layers.Layer):
            for layer in operation._flatten_layers():
                try:
                    check_parts(layer)
                except MixesError as e:
                    self._refuse(layer, True, str(e))

    def _check_inner(self, inner, shape):
        """A layer, or a function of one tensor, that a layer calls."""
        if isinstance(inner, keras.layers.Layer):
            self._check_call(
                inner, (keras.KerasTensor(shape=tuple(shape)),), {}
            )
            return
        name = getattr(inner, "__qualname__", type(inner).__name__)
        own = f"its activation {name} is code of its own"
        if self._trusted:
            raise UnknownError(own)
        try:
            with traced_function(inner, len(shape)) as graph:
                self.check_graph(*graph)
        except NotPerRecordError as e:
            raise UnknownError(
                f"{own}, and in it '{e.name}' ({e.kind}): {e.reason}"
            ) from e
        except (UnknownError, ValueError) as e:
            raise UnknownError(f"{own}: {e}") from e
        self._note_read(f"{getattr(inner, '__module__', '')}.{name}")

    def _note_read(self, name):
        """Notes code that was read, which is tried in every way, too."""
        self._read[name] = True
        self._note_on_trust()

    def _note_on_trust(self):
        if self._outermost not in self.on_trust:
            self.on_trust.append(self._outermost)

    def _check_model(self, call):
        model = call.operation
        if not runs_its_graph(model):
            raise UnlistedError("its class has a `call` of its own")
        inputs = getattr(model, "inputs", None)
        if not inputs:
            raise UnknownError(
                "it has no inputs yet: begin it with `keras.Input(shape)`"
            )
        given = _given(model, call)
        masks = keras.tree.flatten(call.kwargs.get("mask"))
        if any(mask is not None for mask in masks):
            raise UnknownError(
                "it is called with a mask; put its layers into the model itself"
            )
        if len(given) != len(inputs):
            raise UnknownError(
                "it is called neither with a list nor with a dict of its inputs"
            )
        for passed, expected in zip(given, inputs):
            shapes = tuple(passed.shape), tuple(expected.shape)
            same = len(shapes[0]) == len(shapes[1]) and all(
                e is None or e == p for p, e in zip(*shapes)
            )
            if not same:
                raise UnknownError(
                    f"it was built for shape {shapes[1]} and is called with "
                    f"shape {shapes[0]}"
                )
        known = all(None not in tuple(tensor.shape)[1:] for tensor in given)
        if known and any(None in tuple(t.shape)[1:] for t in inputs):
            # Its graph, for the lengths that it is called with.
            with traced(model, call.args, call.kwargs, None) as graph:
                self.check_graph(*graph)
            return
        self.check_graph(list(inputs), list(model.outputs))

    def _refuse(self, operation, mixes, reason):
        described = _described(operation)
        described = described[0].upper() + described[1:]
        if mixes:
            message = (
                f"{described} mixes records or keeps something of them, so a "
                f"record's influence is not bounded: {reason}."
            )
        else:
            message = (
                f"{described} is not known to treat every record on its own, "
                f"so a record's influence may not be bounded: {reason}. Use "
                "layers of Keras or keras_fm in its place (code of your own "
                "may call these, and `keras.ops`), or apply it to the data "
                "beforehand. If it does treat every record on its own, say so: "
                "`guarantee=keras_fm.Proven(per_record=("
                f"{operation.name!r},))`; the statement will repeat it."
            )
        raise NotPerRecordError(message, mixes, operation, reason)


def _is_of_applications(layer):
    return type(layer).__module__.startswith("keras.src.applications.")


def _given(model, call):
    """The tensors that a model is called with, in the order of its inputs."""
    if not call.args or not isinstance(call.args[0], dict):
        return call.tensors
    try:
        return keras.tree.flatten(arranged(model, call.args[0]))
    except ValueError as e:
        raise UnknownError(f"its inputs are not known: {e}") from e


def _described(operation):
    layer = isinstance(operation, keras.layers.Layer)
    kind = "layer" if layer else "operation"
    return f"{kind} '{operation.name}' ({type(operation).__name__})"


def _calls(inputs, outputs):
    """Nodes between inputs and outputs, each after those it depends on.

    Raises:
        ValueError: if the outputs depend on something else.
    """
    ends, found, opened = {id(tensor) for tensor in inputs}, {}, set()
    waiting = list(reversed(outputs))
    while waiting:
        tensor = waiting[-1]
        node = _node(tensor)
        if id(tensor) in ends or id(node) in found:
            waiting.pop()
        elif node is None or node.is_input:
            raise ValueError(
                "What is read must depend on the inputs of the model alone. "
                f"Received a tensor of shape {tuple(tensor.shape)} that is "
                "none of them"
            )
        elif id(node) in opened:
            waiting.pop()
            found[id(node)] = node
        else:
            opened.add(id(node))
            waiting.extend(reversed(node.input_tensors))
    return list(found.values())


def _node(tensor):
    operation, index, _ = tensor._keras_history
    return None if operation is None else operation._inbound_nodes[index]


def runs_its_graph(model):
    """Whether a model does what its graph of layers says, and no more."""
    bases = type(model).__mro__
    bases = bases[: bases.index(keras.layers.Layer)]
    known = [b for b in bases if b.__module__.startswith("keras.src.")]
    own = [vars(b) for b in bases if b not in known]
    # A sequential model keeps its graph there.
    names = (set(vars(model)) - {"_functional"}).union(*own)
    graph = known[0].__name__ in ("Functional", "Sequential")
    return graph and not names & _RUNS
