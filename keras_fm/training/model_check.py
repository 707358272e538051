"""Checks of a model, before any private record is used."""

import collections

import keras

from keras_fm.core import batch_statistics, replicas
from keras_fm.core.private_part import PrivatePart, parts_of
from keras_fm.core.released import Claims
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.training import public_constants

# Advice in refusals, for a network in which more than the output layer trains.
_TRAIN_ALL = (
    "To train all layers with privacy, write `private = "
    "keras_fm.make_private(model)`, and compile and fit `private` with this "
    "callback."
)


def check_built(model):
    """Refuses a model whose layers are not connected yet.

    Raises:
        ValueError: the message shows how to build it.
    """
    if not model.built:
        raise ValueError(
            "The model must be built before its privacy can be planned: "
            "begin it with `keras.Input(shape)` or call "
            "`model.build((None, ...))`."
        )


def check_start(model, top, guarantee):
    """Refuses weights and optimizer state from a fit without privacy."""
    known = top is not None and top.is_released
    optimizer = getattr(model, "optimizer", None)
    if not known and optimizer is not None and optimizer.built:
        if int(keras.ops.convert_to_numpy(optimizer.iterations)) > 0:
            raise ValueError(
                "The model was trained before its first release, so its "
                "weights and optimizer state may hold private records that no "
                "ledger counts. Build and compile a new model, and give its "
                "first fit the PrivateModel callback."
            )
    if known or top is None:
        return
    if top is model:
        top.check_start()
    elif hasattr(top, "check_start"):
        top.check_start(guarantee.start)


def check_one_process(model):
    """Refuses to draw noise in each of several processes.

    They would use different records, or draw twice for the same ones, and
    train on different objectives. Several devices in one process are fine.

    Raises:
        ValueError: the message shows how several processes share one release.
    """
    count = replicas.processes(model)
    if count > 1:
        raise ValueError(
            "Noise must be drawn once, but this training runs in several "
            "processes. Add up their statistics "
            "(`keras_fm.partial_statistics`), release them in one process, "
            "and let the layer learn that release in all of them: "
            "`layer.learn(release, ledger)`; see docs/large_data.md. Received: "
            f"{count} processes"
        )


def check_functional(model):
    """Refuses a model whose graph is unknown or has several outputs.

    Raises:
        ValueError: the message shows how to build it.
    """
    check_built(model)
    inputs = getattr(model, "inputs", None)
    outputs = getattr(model, "outputs", None)
    if not inputs or not outputs:
        raise ValueError(
            "PrivateModel needs a functional or sequential model, so that "
            "it can see what lies under the private layer. A sequential "
            "model must be built with `keras.Input(shape)` or "
            "`model.build((None, ...))`. Received: "
            f"{type(model).__name__}"
        )
    if len(outputs) != 1:
        raise ValueError(
            "The model must have one output. For several labels give the "
            "private layer a unit for each; for several tasks build a model "
            f"for each, with one ledger. Received: {len(outputs)} outputs"
        )


def place_of_parts(model):
    """Finds the private parts of a model.

    A model may be a part itself, on top of layers below. For a model that only
    pre-trains a part, the plan uses the encoding model, with the shares of the
    whole model. Any other model may end with a part.

    Returns:
        tuple `(below, top, (parts, tops))`: the model that processes the
        records, the part on top of it or `None`, and the parts and tops (one
        or none) of the whole model.

    Raises:
        ValueError: if the model is not built, is neither functional nor
            sequential, or has no part that can be released.
    """
    if isinstance(model, PrivatePart):
        below = model.feature_model
        return below, model, (parts_below(below, None), [model])
    below = getattr(model, "encoding_model", model)
    check_functional(below)
    whole = getattr(model, "part_of", None) or below
    top, whole_top = output_part(below), output_part(whole)
    parts = parts_below(whole, whole_top)
    if top is None and not parts:
        layer = below.outputs[0]._keras_history[0]
        units = getattr(layer, "units", "units")
        raise ValueError(
            "The last layer of the model must be "
            f"`keras_fm.layers.PrivateDense({units})` if this callback is to "
            "release it. It gives logits, and the layers below it must be "
            f"frozen (`layer.trainable = False`) or released. {_TRAIN_ALL} "
            f"Received: '{layer.name}' ({type(layer).__name__})"
        )
    return below, top, (parts, [] if whole_top is None else [whole_top])


def output_part(model):
    """The private part at a model's output, or `None`."""
    layer = model.outputs[0]._keras_history[0]
    trains = isinstance(layer, PrivatePart) and layer.trains_on_release
    return layer if trains and hasattr(layer, "release_names") else None


def head_inputs(model):
    """The symbolic input of the layer at a model's output."""
    layer, node, _ = model.outputs[0]._keras_history
    return layer._inbound_nodes[node].input_tensors[0]


def parts_below(model, top):
    """The parts that are released before the top, from the input upwards.

    Raises:
        ValueError: if the model is not built, or a part is inside a nested
            model.
    """
    check_built(model)
    found = [
        part
        for part in parts_of(model)
        if part is not top and hasattr(part, "default_shares")
    ]
    for part in found:
        if part not in model.layers:
            raise ValueError(
                f"{type(part).__name__} '{part.name}' must be in the model "
                "itself, called once, and not inside a nested one."
            )
    # A functional model orders its `layers` from the inputs upwards.
    return [layer for layer in model.layers if layer in found]


def default_shares(parts):
    """The default shares of the releases of parts below the top, in order."""
    kinds = [type(part) for part in parts]
    return [
        share
        for part in parts
        for share in part.default_shares(kinds.count(type(part)))
    ]


def check_parts(model, planned):
    """Refuses private parts that a proof of the plan does not cover.

    Args:
        model: the model that is trained.
        planned: the parts that the plan releases.

    Raises:
        ValueError: naming the part and the way out.
    """
    for part in parts_of(model):
        name = f"{type(part).__name__} '{part.name}'"
        if part.unprotected:
            raise ValueError(
                f"{name} was built with `unprotected=True`: the non-private "
                "twin is never released. Build the model without it."
            )
        if part.unproven or part in planned:
            continue
        if not part.is_released:
            raise ValueError(
                f"{name} has no release, so no ledger counts its training. "
                "Release it first, in a model that ends with it, or leave it "
                "out."
            )


def check_not_perturbed(parts):
    """Refuses parts that were trained on records under claimed noise.

    Raises:
        ValueError: naming the part.
    """
    for part in parts:
        released = part.released
        claimed = released is not None and released.published
        claimed = claimed or getattr(part, "claims_made", ())
        if claimed or part.is_perturbed:
            raise ValueError(
                f"Layer '{part.name}' carries published noise and was "
                "trained on the records without a proof. Build a new model "
                'for guarantee="proven".'
            )


def released_parts(model):
    """All parts of a model, at any depth, whose weights come from a release."""
    return [part for part in parts_of(model) if part.is_released]


def ledger_besides(ledger, ledger_json):
    """The ledger of a release, or `None` if `ledger` has its entries."""
    other = Ledger.from_json(ledger_json)
    # Two ledgers from the same second may have equal entries.
    if other.id == ledger.id:
        known = ledger.entries
        if all(entry in known for entry in other.entries):
            return None
    return other


def _texts_of(model):
    """The ledgers of releases and of claims that parts of a model carry."""
    for part in parts_of(getattr(model, "part_of", None) or model):
        if part.is_released:
            yield part.ledger_json
        yield from getattr(part, "claims_made", Claims()).texts


def ledgers_of(model, ledger):
    """All ledgers that were charged for a model: that of its callback (if it
    was charged or there is no other), and those of other releases in it."""
    others = {}
    for text in _texts_of(model) if model is not None else ():
        other = ledger_besides(ledger, text)
        if other is not None:
            others[other.id] = other
    own = [ledger] if ledger.entries or not others else []
    return [*own, *others.values()]


def epsilon_of(model, ledger, delta):
    """The proven epsilon of all releases of a model, at `delta`.

    Raises:
        ValueError: if there are several ledgers, or `delta` is out of range.
    """
    ledgers = ledgers_of(model, ledger)
    if len(ledgers) > 1:
        raise ValueError(
            f"The model was released under {len(ledgers)} ledgers, which may "
            "be of different records, so it has no single epsilon. `report()` "
            "has a statement of each; `ledger.epsilon(delta=...)` is the "
            "epsilon of this callback's ledger."
        )
    return ledgers[0].epsilon(delta=delta)


def layers_below(model, head):
    """All layers of the model but its output layer, flattened."""
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if layer is not head
    ]


def check_proven(model, head):
    """Refuses every layer under `head` that no proof covers.

    Raises:
        ValueError: naming the layer, the reason and the way out.
    """
    layers = layers_below(model, head)
    public_constants.check(layers)
    for layer in layers:
        name = f"'{layer.name}' ({type(layer).__name__})"
        if getattr(layer, "unproven", None):
            raise ValueError(
                f"Layer {name} cannot be part of a proven model: "
                f"{layer.unproven}."
            )
        if _has_batch_state(layer):
            frozen = (
                " If it is part of a body that was trained by others, and its "
                "moving statistics are public, freeze the body "
                "(`body.trainable = False`)."
            )
            raise ValueError(
                f"Layer {name} mixes records or keeps statistics of them, so "
                "the influence of one record has no bound. Use "
                "`keras.layers.GroupNormalization` or "
                "`keras_fm.layers.NormalizationLayer` (unit norm or public "
                "bounds), which treat every record on its own."
                + frozen * isinstance(layer, keras.layers.BatchNormalization)
                + f" {_TRAIN_ALL}"
            )
        if getattr(layer, "is_published", False):
            raise ValueError(
                f"Layer {name} is of the published form, which trains on the "
                "records without a proof. Build it, or the paper's model, "
                'with guarantee="proven": it then learns from a release.'
            )
        if any(v.trainable for v in layer.weights):
            way = "freeze it: `layer.trainable = False`"
            if not layer.trainable:
                way = (
                    "write `self.trainable = False` in the last line of its "
                    "`__init__`: layers that come after it are not frozen, "
                    "and Keras would train them"
                )
            raise ValueError(
                f"Layer {name} has trainable weights below the private "
                "layer, and training them would use the records again at "
                f"every step. If its weights are public, {way}. {_TRAIN_ALL}"
            )


def _has_batch_state(layer):
    if isinstance(layer, batch_statistics.KINDS):
        return not batch_statistics.are_constant(layer)
    return isinstance(layer, NormalizationLayer) and layer.depends_on_data


# If there are more layers, they are not named one by one.
_NAMED = 8


def public_facts(model, head):
    """The facts that the proof assumes to be public, for the ledger."""
    facts, frozen = [], []
    layers = layers_below(model, head)
    constants = public_constants.facts(layers)
    for layer in layers:
        public = getattr(layer, "public_data", None)
        if isinstance(layer, PrivatePart):
            facts.append(layer.public_fact())
        elif public:
            facts.append(f"public data of layer '{layer.name}': {public}")
        elif id(layer) in constants:
            facts.append(constants[id(layer)])
        elif layer._trainable_variables or layer._non_trainable_variables:
            # Its own weights, not those of layers in it.
            frozen.append(layer)
    facts += _facts_of_layers("frozen weights of", frozen)
    statistics = [v for v in frozen if isinstance(v, batch_statistics.KINDS)]
    facts += [
        f"{fact}; name the data that trained them yourself"
        for fact in _facts_of_layers("moving statistics of", statistics)
    ]
    facts += [
        "public by declaration: the lengths to which records of input "
        f"'{tensor.name}' are padded or cut"
        for tensor in getattr(model, "inputs", None) or ()
        if None in tensor.shape[1:]
    ]
    return facts


def _facts_of_layers(what, layers):
    """One fact for each layer if they are few, else one for all."""
    what = f"public by declaration: {what}"
    if len(layers) <= _NAMED:
        return [f"{what} layer '{v.name}' ({type(v).__name__})" for v in layers]
    kinds = collections.Counter(type(layer).__name__ for layer in layers)
    counted = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    return [f"{what} {len(layers)} layers ({counted})"]
