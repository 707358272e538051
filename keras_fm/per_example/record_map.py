"""A record's contribution to a step: its clipped gradient, from it alone.

The map (weights, record, key) -> contribution is a function without state. No
other record, no generator of the framework and no state of an earlier step
enters it. Only the contribution leaves it. docs/proofs/record_alone.md has the
proof.
"""

import contextlib
import functools
import math
import operator

import keras
import numpy as np

from keras_fm.core import record_alone
from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example import (
    ghost_layers,
    product_weights,
    recurrent_map,
    sum_noise,
)
from keras_fm.per_example.affine_maps import (
    UNDERFLOW,
    squared_length,
    total,
    without,
)
from keras_fm.per_example.clipping import scales
from keras_fm.per_example.product_weights import Products, watched

# Size of the per-record gradients in memory at a time, in numbers.
HELD = 2**25
# If pieces have a fixed shape: the fewest records of a piece, and the part of a
# large batch that it is. Pieces of padding alone are skipped.
_FEWEST, _PART = 8, 8
KEY_DTYPE = sum_noise.DTYPE
# The least cosine between derivatives that have one direction, and the part of
# the longest one that counts as none.
_ONE_WAY, _NOTHING = 0.9999, 1e-4
_COMPARES = (
    "The loss compares the rows of a batch, and a private step computes the "
    "gradient of each row alone. Use a loss that is a sum over rows (`Dice` "
    "and `Tversky` have one with `axis`), put the rows to compare into one "
    "record, as pairs, or name `owners`, whose rows stay together."
)
_HANDS_ON = (
    "'{}' or its loss hands something of a record on to the next{} while it "
    "trains. Keep state in weights (`add_weight`) that `assign` changes, and "
    "draw with `keras.random` and a `keras.random.SeedGenerator` of the layer."
)
# Layers that draw random numbers for every record separately.
_DRAWING = tuple(
    getattr(keras.layers, name)
    for name in (
        *("Dropout", "SpatialDropout1D", "SpatialDropout2D"),
        *("SpatialDropout3D", "GaussianDropout", "GaussianNoise"),
        "AlphaDropout",
    )
)
# Operations of TensorFlow that leave something for the next record.
_LASTING = tuple(
    """
    Assign ResourceScatter Random TruncatedNormal ParameterizedTruncatedNormal
    Multinomial RngReadAndSkip StatefulRandom StatefulUniform
    StatefulStandardNormal StatefulTruncatedNormal
    """.split()
)


class RecordMap:
    """Sums of clipped gradients of single records.

    Args:
        trainer: a `PrivateNetwork` with its model, its loss and the loss's
            state.
        clip: see `clipping.scales`.
        way: `"together"`, one call with all records, for layers that are known
            to treat them one by one and whose trained ones are all ghost
            layers; `"vmap"`, a vectorised map over records; `"one"`, one record
            after the other.
        ghosts: list of `GhostLayer`.
        products: list of `ProductWeight`.
    """

    def __init__(self, trainer, clip, way, ghosts=(), products=()):
        network = trainer.model
        self._trainer, self.network = trainer, network
        self.clip, self.way, self.ghosts = clip, way, [*ghosts, *products]
        self._layers, self._products = list(ghosts), list(products)
        self.training = True
        self.learned = list(network.trainable_variables)
        learned = {id(v) for v in self.learned}
        others = [v for v in network.variables if id(v) not in learned]
        self._seeds = seeds_of(network)
        seeds = {id(v) for v in self._seeds}
        self._fixed = [v for v in others if id(v) not in seeds]
        layers = [ghost.layer for ghost in ghosts]
        self._lowered = [
            pair
            for pair in ghost_layers.lowered(network, way)
            if all(pair[0] is not layer for layer in layers)
        ]
        of_ghosts = {id(v) for g in self.ghosts for v in g.variables}
        self._as_products = ghost_layers.as_products(network, way)
        self.direct = [v for v in self.learned if id(v) not in of_ghosts]
        held = sum(int(np.prod(v.shape)) for v in self.direct)
        held += sum(
            int(np.prod(g.probe_shape)) + g.map.held for g in self.ghosts
        )
        self.piece = 1 if way == "one" else max(HELD // max(held, 1), 1)
        # Whether a piece ends with the last record. Then shapes depend on data,
        # which JAX, XLA and TensorFlow's map do not allow.
        backend = keras.backend.backend()
        may = backend == "tensorflow" and way == "together"
        self.cuts = backend == "torch" or (may and not trainer.jit_compile)

    @property
    def key_shape(self):
        """Shape of the key of one record: two words for the noise of a step,
        two for every random stream, and two for all other random numbers."""
        return (2 + len(self._seeds), 2)

    @property
    def _shares_key(self):
        """Whether all records of a step share one mask: PyTorch's generators
        have no keys of single records, and TensorFlow's map has one for all. A
        call of all records together draws for each, from the key of the first
        of its piece."""
        backend = keras.backend.backend()
        return self.way != "together" and (
            backend == "torch"
            or (backend == "tensorflow" and self.way == "vmap")
        )

    @property
    def needs_xla(self):
        """Whether TensorFlow should compile it: its map over records, since
        matrix products of several threads can end the process otherwise
        (TensorFlow 2.21, processors with AVX-512); and loops over time within
        a loop over records, which take ten times as long otherwise."""
        return self._trainer.may_jit and (
            self.way == "vmap"
            or (self.way == "one" and ghost_layers.has_loops(self.network))
        )

    # One record ----------------------------------------------------------

    def uses(self, variables, example):
        """How a made-up record uses weights outside the maps of layers, see
        `product_weights.found_in`; `None` for all if it cannot be told."""
        x, y = keras.tree.map_structure(
            lambda v: ops.convert_to_tensor(v[:1]), example
        )
        probes = [ops.zeros((1, *ghost.probe_shape)) for ghost in self.ghosts]
        key = ops.ones(self.key_shape, KEY_DTYPE)
        direct, rest = self._values()

        def loss(values):
            held = zip(variables, values)
            found = self._loss_with(direct, probes, rest, held, x, y, key)
            # What a layer reads in a loop cannot be used outside of it.
            return found[0], [v + 0 for v in found[1]]

        values = list(map(_constant, variables))
        try:
            return product_weights.found_in(loss, values)
        except Exception:
            return [None] * len(variables)

    def loss_of_one(self, example, training):
        """The loss of the first made-up record."""
        x, y = keras.tree.map_structure(lambda v: v[:1], example)
        values = [(v, v.value) for v in self.network.variables]
        with keras.StatelessScope(values, collect_losses=True):
            y_pred = self.network(x, training=training)
            return self._trainer.loss_of_records(y, y_pred)

    def _loss(self, direct, probes, rest, x, y, key, outputs=None):
        """The loss of a batch of one record, or the sum over all records
        together; and the inputs of layers and products with probes. On
        TensorFlow products have none, and a list of their results gets filled.
        """
        count = len(self._layers)
        of_layers, of_products = probes[:count], probes[count:]

        def loss(values):
            held = zip((p.variables[0] for p in self._products), values)
            return self._loss_with(direct, of_layers, rest, held, x, y, key)

        if not self._products:
            return loss([])
        values = [v for (v,) in rest[1][count:]]
        parts = [
            product.map.parts(probe, 1)
            for product, probe in zip(self._products, of_products)
        ]
        products = Products(values, parts if outputs is None else None)
        value, reads = watched(loss, products)
        if products.uses != [p.map.uses for p in self._products]:
            self._refuse_change()
        if outputs is not None:
            outputs += products.outputs
        reads += [ops.concatenate(v, axis=1) for v in products.reads]
        return value, reads

    def _loss_with(self, direct, probes, rest, held, x, y, key):
        """`_loss` with values of more weights, and inputs of layers."""
        fixed, ghost, kept = rest
        mapping = [*zip(self.direct, direct), *zip(self._fixed, fixed), *kept]
        for index, seed in enumerate(self._seeds):
            mapping.append((seed, ops.cast(key[index + 1], seed.dtype)))
        reads, functions = [[] for _ in self._layers], list(self._lowered)
        for at, layer in enumerate(self._layers):
            mapping += zip(layer.variables, ghost[at])
            functions.append(
                (layer.layer, _call(layer, ghost[at], probes[at], reads[at]))
            )
        mapping += held
        with (
            keras.StatelessScope(mapping, collect_losses=True) as scope,
            ghost_layers.replaced_calls(functions),
            ghost_layers.replaced_calls(self._as_products, "convolution_op"),
        ):
            y_pred = self.network(x, training=self.training)
            if self._trainer.loss is None and not scope.losses:
                raise ValueError(
                    f"'{self.network.name}' has no loss. Give `compile` one, "
                    "or `add_loss` in a layer."
                )
            if self.way != "together":
                value = ops.sum(self._trainer.loss_of_records(y, y_pred))
                # Activity penalties, without weight penalties.
                for more in scope.losses:
                    # Layers may have less precision.
                    value = value + ops.cast(ops.sum(more), value.dtype)
            elif scope.losses or _masks(y_pred):
                raise ValueError("a loss of a whole batch")
        if self.way == "together":
            value = ops.sum(self._losses(y, y_pred, mapping))
        if any(len(v) != g.uses for v, g in zip(reads, self._layers)):
            self._refuse_change()
        return ops.cast(value, "float32"), [
            _of_uses(v, g.map.input_shape) for v, g in zip(reads, self._layers)
        ]

    def _refuse_change(self):
        raise ValueError(
            f"'{self.network.name}' uses its layers in another way than in its "
            "first call. A private step needs the same layers and weights in "
            "every call."
        )

    def _losses(self, y, y_pred, mapping):
        """The loss of each record, as a batch of one."""

        def of_one(rows):
            y, y_pred = keras.tree.map_structure(
                lambda v: ops.expand_dims(v, 0), rows
            )
            with keras.StatelessScope(mapping):
                return ops.sum(self._trainer.loss_of_records(y, y_pred))

        return _vectorized(of_one, (y, y_pred))

    # A piece of a batch ----------------------------------------------------

    def _gradients(self, direct, rest, x, y, keys):
        """For every record: gradients by weights outside ghost layers, and the
        derivatives and inputs of each ghost layer."""
        rows = ops.shape(keys)[0] if self.way == "together" else 1
        on_tensorflow = keras.backend.backend() == "tensorflow"
        probes = [
            ops.zeros((rows, *ghost.probe_shape), "float32")
            for ghost in self.ghosts
        ]

        def found(x, y, key):
            outputs = [] if on_tensorflow else None
            (by, probed), reads = _derivative(
                lambda both: self._loss(*both, rest, x, y, key, outputs),
                (direct, probes),
                alone=self.way == "one",
                outputs=outputs,
            )
            return by, probed, reads

        if self.way == "together":
            if self.cuts:
                # Probes would be one more copy of all outputs.
                return _derivatives(
                    lambda probes: self._loss(
                        direct, probes, rest, x, y, keys[0]
                    ),
                    self._layers,
                )
            return found(x, y, keys[0])
        if self.way == "one":
            by, *others = found(x, y, keys[0])
            return [[v[None] for v in by], *others]

        def of_each(function, *given):
            def of_one(rows):
                x, y, *more = rows
                x, y = keras.tree.map_structure(
                    lambda v: ops.expand_dims(v, 0), (x, y)
                )
                return function(x, y, *more)

            return _vectorized(of_one, (x, y, *given))

        def of_all(own):
            losses, reads = of_each(
                lambda x, y, own: self._loss(*own, rest, x, y, keys[0]), own
            )
            return ops.sum(losses), reads

        if keras.backend.backend() == "torch" and all(
            len(v.shape) < 2 for v in direct
        ):
            # `torch.func.grad` would keep all derivatives in memory.
            own = keras.tree.map_structure(
                lambda v: v.expand(len(keys), *v.shape), (direct, probes)
            )
            (by, probed), reads = _derivative(of_all, own, alone=True)
        elif self._shares_key:
            by, probed, reads = of_each(lambda x, y: found(x, y, keys[0]))
        else:
            by, probed, reads = of_each(found, keys)
        return by, [v[:, 0] for v in probed], [v[:, 0] for v in reads]

    def _measured(self, direct, rest, x, y, keys):
        """For some records: gradients, the inputs of the ghost layers' sums,
        and squared norms."""
        with _seeded_torch(keys):
            by, returned, reads = self._gradients(direct, rest, x, y, keys)
        by = [ops.cast(v, "float32") for v in by]
        returned, reads = list(returned), list(reads)
        squared = ops.full(ops.shape(keys)[:1], UNDERFLOW, "float32")
        for value in by:
            squared += squared_length(value)
        ghosts = []
        for ghost in self.ghosts:
            # Popped to free memory for the result.
            read, delta = reads.pop(0), ops.cast(returned.pop(0), "float32")
            if not ghost.reads_tokens:
                read = ops.cast(read, "float32")
            more, measures = ghost.map.measured(read, delta)
            squared += more
            ghosts.append(measures)
        return (by, ghosts), squared

    def _piece(self, direct, rest, x, y, keys, factors):
        """Sums of the contributions of some records."""
        (by, ghosts), squared = self._measured(direct, rest, x, y, keys)
        scale, finite = scales(self.clip, squared, factors)
        by, ghosts, scale = without((by, ghosts, scale), finite)
        found = {id(v): total(g, scale) for v, g in zip(self.direct, by)}
        for ghost, measures in zip(self.ghosts, ghosts):
            sums = ghost.map.sums_of(measures, scale)
            found.update(zip(map(id, ghost.variables), sums))
        return [found[id(v)] for v in self.learned]

    def sums(self, x, y, keys, factors):
        """Sums over the records of a batch, in the order of `learned`.

        A record changes all sums together by at most 1 in L2 norm: its gradient
        is divided by the clip, or by its norm.

        Args:
            x, y: trees of tensors `(n, ...)`.
            keys: `(n, *key_shape)` secret words.
            factors: `(n,)` numbers from 0 to 1 that multiply contributions; 0
                for padding.

        Returns:
            list of float32 tensors.
        """
        if self._shares_key:
            keys = ops.broadcast_to(keys[:1], ops.shape(keys))
        direct, rest = self._values()
        records, rows = (x, y, keys, factors), factors.shape[0]
        piece, cuts = min(self.piece, rows), self.cuts
        # After the last record there is only padding.
        places = ops.arange(1, rows + 1, dtype="int32")
        count = ops.max(ops.where(factors > 0, places, 0))

        def of_piece(i):
            start = i * piece
            size = ops.clip(count - start, 1, piece) if cuts else piece
            # The last piece may reach back over records that are summed.
            first = ops.minimum(start, rows - size)
            *part, own = keras.tree.map_structure(
                lambda v: ops.rows(v, first, size), records
            )
            own = ops.where(ops.rows(places, first, size) > start, own, 0.0)
            return self._piece(direct, rest, *part, own)

        if piece == rows:
            return of_piece(0)

        def add(i, sums):
            return list(map(operator.iadd, sums, of_piece(i)))

        sums = [ops.zeros(v.shape, "float32") for v in self.learned]
        pieces = ops.cast((count + piece - 1) // piece, "int32")
        return ops.fori_loop(ops.zeros((), "int32"), pieces, add, sums)

    def _values(self):
        """Values of the trained weights outside ghost layers; and of the frozen
        weights, those of ghost layers, and pairs of the loss's state."""
        # A loss of several outputs keeps a mean of each.
        return [_constant(v) for v in self.direct], (
            [_constant(v) for v in self._fixed],
            [[_constant(v) for v in g.variables] for g in self.ghosts],
            [(v, _constant(v)) for v in self._trainer.metrics_variables],
        )


def _call(ghost, weights, probe, reads):
    """What replaces a layer's call. `probe` is a tensor that is added to the
    outputs before activation, or a function of them."""

    def call(inputs, *args, **kwargs):
        use = len(reads)

        def probed(z):
            if callable(probe):
                return probe(z)
            parts = ops.reshape(probe, (-1, ghost.uses, *z.shape[1:]))
            return z + ops.cast(parts[:, use], z.dtype)

        read, outputs = ghost.called(
            inputs, weights, probed, kwargs.get("mask")
        )
        reads.append(read)
        return outputs

    return call


def _constant(variable):
    return ops.stop_gradient(ops.convert_to_tensor(variable))


@contextlib.contextmanager
def _seeded_torch(keys):
    """In the context, PyTorch's global generator (used by `Dropout`) is seeded
    by the key of the step; afterwards it is restored."""
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    devices = list(range(torch.cuda.device_count()))
    words = ops.convert_to_numpy(keys)[0, -1].astype("int64").tolist()
    with torch.random.fork_rng(devices=devices):
        # Seeding all devices would record each call, for error messages.
        on_cpu = keys.device.type == "cpu"
        generator = torch.default_generator if on_cpu else torch
        generator.manual_seed(words[0] * 2**31 + words[1])
        yield


def _masks(y_pred):
    """Whether outputs have a mask of their valid places."""
    return any(
        getattr(v, "_keras_mask", None) is not None
        for v in keras.tree.flatten(y_pred)
    )


def _vectorized(function, rows):
    """The backend's vectorised map of a function over rows."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.vmap(function)(rows)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.vectorized_map(
            # TensorFlow must not rewrite it and the layers.
            tf.autograph.experimental.do_not_convert(function),
            rows,
            fallback_to_while_loop=False,
        )
    import torch
    from torch.overrides import TorchFunctionMode

    class AsStored(TorchFunctionMode):
        """Keras stores images with channels last, which the map does not
        support, if they are not yet."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            del types
            if func is torch.Tensor.is_contiguous:
                return True
            return func(*args, **(kwargs or {}))

    with AsStored():
        return torch.func.vmap(function, randomness="same")(rows)


def _derivative(function, at, alone, outputs=None):
    """The derivative of a function's first result, and the second result.
    `alone`: not inside a vectorised map. `outputs`: see `_loss`; derivatives by
    these are the last ones."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.grad(function, has_aux=True)(at)
    if backend == "torch":
        import torch

        if not alone:
            return torch.func.grad(function, has_aux=True)(at)
        # Layers may use operations that `torch.func` does not support.
        at = keras.tree.map_structure(lambda v: v.detach().requires_grad_(), at)
        with torch.enable_grad():
            value, more = function(at)
        leaves = keras.tree.flatten(at)
        # For a loss that does not depend on them.
        found = [torch.zeros_like(v) for v in leaves]
        if value.requires_grad:
            found = torch.autograd.grad(value, leaves, materialize_grads=True)
        more = [v.detach() for v in more]
        return keras.tree.pack_sequence_as(at, list(found)), more
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(at)
        value, more = function(at)
    if outputs:
        results = [z for of_one in outputs for z, _ in of_one]
        found = tf.gradients(
            value,
            [*keras.tree.flatten(at), *results],
            unconnected_gradients="zero",
        )
        deltas = iter(found[-len(results) :])
        direct, probes = keras.tree.pack_sequence_as(at, found[: -len(results)])
        probes[-len(outputs) :] = [
            tf.concat(
                [
                    tf.reshape(tf.transpose(next(deltas), order), (1, -1))
                    for _, order in of_one
                ],
                axis=1,
            )
            for of_one in outputs
        ]
        return (direct, probes), more
    found = tape.gradient(value, at, unconnected_gradients="zero")
    found = keras.tree.map_structure(tf.convert_to_tensor, found)
    return found, more


def _of_uses(values, shape):
    """Values of several uses of a layer, side by side."""
    if len(values) == 1:
        return values[0]
    return ops.reshape(ops.stack(values, axis=1), (-1, *shape))


def _derivatives(function, layers):
    """Derivatives by the outputs of layers, instead of by probes."""
    seen = [[] for _ in layers]

    def see(at, watch, value):
        seen[at].append(value)
        watch(value)
        return value

    def seen_by(watch):
        return function(
            [functools.partial(see, at, watch) for at in range(len(layers))]
        )

    def joined(found):
        return [
            _of_uses(v, layer.probe_shape) for v, layer in zip(found, layers)
        ]

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            value, reads = seen_by(tape.watch)
        found = tape.gradient(value, seen, unconnected_gradients="zero")
        found = keras.tree.map_structure(tf.convert_to_tensor, found)
        return [], joined(found), reads
    import torch

    with torch.enable_grad():
        value, reads = seen_by(torch.Tensor.requires_grad_)
        found = torch.autograd.grad(
            value, keras.tree.flatten(seen), materialize_grads=True
        )
    found = joined(keras.tree.pack_sequence_as(seen, list(found)))
    return [], found, [v.detach() for v in reads]


def chosen_for(trainer, clip, example, piece=None, expected=None):
    """The fastest `RecordMap` that agrees with plain gradients of single
    records.

    Args:
        trainer, clip: see `RecordMap`.
        example: `(x, y)` of made-up records.
        piece: number of records in memory at a time, or `None`.
        expected: number of records of a batch, or `None`.

    Returns:
        a `RecordMap`.
    """

    def made(way, ghosts=(), products=()):
        found = RecordMap(trainer, clip, way, ghosts, products)
        if way != "one":
            # Where a record has few places for a weight, products of a few
            # records are slow. One piece holds most samples.
            dense = all(ghost.map.has_few for ghost in found.ghosts)
            dense &= all(len(v.shape) < 2 for v in found.direct)
            part = 0.9375 if dense and found.ghosts else _PART
            some = max(_FEWEST, int((expected or _FEWEST) / part))
            if not found.cuts:
                found.piece = min(found.piece, some)
            found.piece = piece or found.piece
        return found

    plain = made("one")
    wanted = _tried(plain, example)
    if not any(np.any(v) for v in wanted):
        _check_alone(plain, example)
    # A training call may do more than a plain call.
    if keras.backend.backend() == "torch":
        _check_repeats(plain, example)
    else:
        _tried(plain, example, training=True)
    ghosts = ghost_layers.found_in(
        trainer.model,
        lambda training: shaped(lambda: plain.loss_of_one(example, training)),
    )
    ghosts = _read_once(made, ghosts, example)
    ways = [made("together", ghosts)]
    if (
        ways[0].direct
        or record_alone.unlisted(trainer.model) is not None
        or not draws_apart(trainer.model)
    ):
        ways = []
    if not ghost_layers.has_loops(trainer.model):
        convolving = {
            id(v) for v, _ in ghost_layers.as_products(trainer.model, "vmap")
        }
        ghosts = [g for g in ghosts if id(g.layer) not in convolving]
        alone = made("vmap", ghosts)
        products = _multiplied(alone, example)
        if products:
            ways.append(made("vmap", ghosts, products))
        ways += [alone, made("vmap")]
    for found in ways:
        try:
            got = _tried(found, example)
            _tried(found, example, training=True)
        except Exception:
            # If a way does not support the model, another one does.
            continue
        if all(_near(a, b) for a, b in zip(got, wanted)):
            return found
    return plain


def _check_repeats(plain, example):
    """Refuses what changes tensors in place: the next record would see it."""
    held = plain.network.variables
    before = [np.array(ops.convert_to_numpy(v)) for v in held]
    # A clip would hide lengths.
    clip, plain.clip = plain.clip, 1e6
    first, again = (_tried(plain, example, training=True) for _ in range(2))
    plain.clip = clip
    kept = [*zip(first, again), *zip(before, map(ops.convert_to_numpy, held))]
    if not all(
        np.allclose(a, b, 1e-5, 1e-5 * np.max(np.abs(b), initial=0), True)
        for a, b in kept
    ):
        for variable, value in zip(held, before):
            variable.assign(value)
        raise ValueError(_HANDS_ON.format(plain.network.name, ""))


def check_rows(trainer, example):
    """Refuses a compiled loss that pulls an output elsewhere if other rows are
    with it.

    Args:
        trainer: see `RecordMap`.
        example: `(x, y)` of made-up records.
    """
    x, y = keras.tree.map_structure(ops.convert_to_tensor, example)
    network = trainer.model
    held = [
        (v, v.value) for v in (*network.variables, *trainer.metrics_variables)
    ]
    with keras.StatelessScope(held, collect_losses=True):
        outputs = network(x, training=False)
    if not all(
        keras.backend.is_float_dtype(v.dtype)
        for v in keras.tree.flatten(outputs)
    ):
        return
    # Other numbers in each row, even of outputs that begin equal; those from 0
    # to 1 stay there.
    n = len(keras.tree.flatten(example)[0])
    shares = np.linspace(0.05, 0.2, n)

    def moved(values):
        shape = (n,) + (1,) * (len(values.shape) - 1)
        share = ops.cast(np.reshape(shares, shape), values.dtype)
        return ops.stop_gradient(0.8 * values + share)

    outputs = keras.tree.map_structure(moved, outputs)

    def loss(outputs, y):
        with keras.StatelessScope(held, collect_losses=True):
            found = ops.sum(trainer.loss_of_records(y, outputs))
        return ops.cast(found, "float32"), []

    def derivatives(outputs, y):
        """Of all rows together, and of each by itself."""

        def of(rows):
            at, labels = keras.tree.map_structure(
                lambda v: v[rows], (outputs, y)
            )
            return _derivative(lambda v: loss(v, labels), at, True)[0]

        return [of(slice(n)), *(of(slice(i, i + 1)) for i in range(n))]

    def flat(found):
        parts = map(ops.convert_to_numpy, keras.tree.flatten(found))
        return np.concatenate(
            [np.reshape(v, (len(v), -1)).astype("float64") for v in parts],
            axis=1,
        )

    together, *apart = map(flat, _compiled(derivatives, outputs, y))
    both = np.nan_to_num([together, np.concatenate(apart)])
    if both.shape[2] == 1:
        # Lengths may differ where only a part of a row counts. A number has
        # no parts, and only its length tells.
        both = np.swapaxes(both, 1, 2)
    lengths = np.linalg.norm(both, axis=2)
    far = np.sum(np.prod(both, axis=0), axis=1) <= _ONE_WAY * np.prod(
        lengths, axis=0
    )
    most = lengths.max(axis=1, keepdims=True)
    if np.any(far & np.any(lengths > _NOTHING * most, axis=0)):
        raise ValueError(_COMPARES)


def _check_alone(plain, example):
    """Refuses losses of layers that only compare rows: no row by itself has a
    gradient, and made-up rows together have one."""
    direct, rest = plain._values()
    x, y = keras.tree.map_structure(ops.convert_to_tensor, example)
    key = ops.ones(plain.key_shape, KEY_DTYPE)
    plain.training = False
    (found, _), _ = _derivative(
        lambda both: plain._loss(*both, rest, x, y, key), (direct, []), True
    )
    plain.training = True
    length = sum(float(ops.sum(ops.abs(v))) for v in found)
    if 0 < length < math.inf:
        raise ValueError(_COMPARES)


def seeds_of(network):
    """The states of random streams: variables that are neither weights nor of a
    layer's metric."""
    known = {id(v) for v in network.weights}
    for layer in network._flatten_layers():
        known |= {id(v) for v in layer.metrics_variables}
    found = [
        v
        for v in network.variables
        if id(v) not in known and tuple(v.shape) == (2,) and "int" in v.dtype
    ]
    if keras.backend.backend() != "jax":
        # Finds the state of draws without a seed, which JAX refuses in a step.
        with _Assigned() as scope:
            keras.random.uniform(())
        found += scope.variables
    return found


class _Assigned(keras.StatelessScope):
    """Notes the variables that are assigned in it, and changes none."""

    def __init__(self):
        super().__init__()
        self.variables = []

    def add_update(self, update):
        self.variables.append(update[0])
        super().add_update(update)


def draws_apart(network):
    """Whether a network draws random numbers for every record separately. If
    one record is removed, others move to the piece before. A number that a
    piece shares, such as the place of a `RandomCrop`, would then change for
    them."""
    apart = {
        id(layer.seed_generator.state)
        for layer in network._flatten_layers()
        if hasattr(layer, "seed_generator")
        and (
            type(layer) in _DRAWING
            and getattr(layer, "noise_shape", None) is None
            or recurrent_map.draws_nothing(layer)
        )
    }
    held = {id(v) for v in network.variables}
    drawn = {id(seed) for seed in seeds_of(network)} & held
    return drawn <= apart


def _read_once(made, ghosts, example):
    """The ghost layers whose weights only their own calls use."""
    held = [v for ghost in ghosts for v in ghost.variables]
    uses = made("one", ghosts).uses(held, example)
    used = {id(v) for v, found in zip(held, uses) if found != []}
    found = [g for g in ghosts if used.isdisjoint(map(id, g.variables))]
    if found or len(ghosts) < 2:
        return found
    found = [g for g in ghosts if _read_once(made, [g], example)]
    return _read_once(made, found, example) if len(found) < len(ghosts) else []


def _multiplied(alone, example):
    """List of `ProductWeight` of the matrices without a map."""
    matrices = [v for v in alone.direct if len(v.shape) > 1]
    return [
        product_weights.ProductWeight(v, uses)
        for v, uses in zip(matrices, alone.uses(matrices, example))
        if uses
    ]


def _tried(made, example, training=False):
    """The sums over made-up records, as arrays. In training they are random, so
    the call is only checked to work."""
    made.training, piece = training, made.piece
    n = len(keras.tree.flatten(example)[0])
    if made.way != "one":
        # As a fit does: what XLA cannot compile within a loop over pieces.
        made.piece = max(n - 1, 1)
    try:
        x, y = keras.tree.map_structure(ops.convert_to_tensor, example)
        keys = ops.ones((n, *made.key_shape), KEY_DTYPE)
        factors = ops.convert_to_tensor(
            np.linspace(1, 0.5, n).astype("float32")
        )
        sums = _run(made, (x, y, keys, factors), traced=training)
        return [ops.convert_to_numpy(v) for v in sums]
    finally:
        made.training, made.piece = True, piece


def shaped(function):
    """Calls a function for its side effects. On JAX, where single operations
    are slow, with shapes only."""
    if keras.backend.backend() == "jax":
        import jax

        jax.eval_shape(function)
    else:
        function()


def _compiled(function, *arguments):
    """`function(*arguments)`; on JAX compiled, without keeping the program."""
    if keras.backend.backend() != "jax":
        return function(*arguments)
    import jax

    compiled = jax.jit(function)
    found = compiled(*arguments)
    compiled.clear_cache()
    return found


def _run(made, arguments, traced):
    """`made.sums(*arguments)`, or only a trace of it."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        if traced:
            jax.eval_shape(made.sums, *arguments)
            return []
        return _compiled(made.sums, *arguments)
    if backend == "tensorflow":
        import tensorflow as tf

        if made.way == "one" and not traced:
            return made.sums(*arguments)
        compiled = made.needs_xla and not traced
        function = tf.function(made.sums, autograph=False, jit_compile=compiled)
        with _quiet():
            if not traced:
                return function(*arguments)
            graph = function.get_concrete_function(*arguments).graph
        _check_lasting(graph.as_graph_def(), made.network)
        return []
    return made.sums(*arguments)


def _check_lasting(graph, network):
    """Refuses TensorFlow's own variables and streams of random numbers, which
    one record would hand on to others."""
    nodes = [
        *graph.node,
        *(n for f in graph.library.function for n in f.node_def),
    ]
    for node in nodes:
        if node.op.startswith(_LASTING):
            raise ValueError(_HANDS_ON.format(network.name, f" ({node.op})"))


@contextlib.contextmanager
def _quiet():
    """Silences TensorFlow's log of operations that its map does not support:
    another way is used then."""
    import tensorflow as tf

    log = tf.get_logger()
    level = log.level
    log.setLevel("CRITICAL")
    try:
        yield
    finally:
        log.setLevel(level)


def _near(one, other):
    far = np.max(np.abs(one - other), initial=0.0)
    return far <= 1e-3 * np.max(np.abs(other), initial=0.0) + 1e-5
