"""An `LSTM`, `GRU` or `SimpleRNN`, as a map of every record.

At time t it adds `x_t K`, from the input, and `h_{t-1} R`, from the output
before. Let d_t be the derivative at the first term and e_t that at the second
(equal, except for one gate of a `GRU`). A record's coefficients are `sum_t x_t
d_t^T` and `sum_t h_{t-1} e_t^T`, as of two `Dense` layers that are applied to
every time separately.
"""

import keras

from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.affine_maps import (
    CoefficientMap,
    ConvolutionMap,
    Part,
)

KINDS = (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN)
CELLS = (
    *(keras.layers.LSTMCell, keras.layers.GRUCell),
    keras.layers.SimpleRNNCell,
)


def draws_nothing(cell):
    """Whether it is the cell of a recurrent layer without dropout."""
    return type(cell) in CELLS and not (cell.dropout or cell.recurrent_dropout)


def is_known(layer):
    """Whether a recurrent layer starts at zero and has no dropout."""
    return (
        draws_nothing(layer.cell)
        and not (layer.stateful or layer.zero_output_for_mask)
        and getattr(layer.cell, "reset_after", True)
    )


class RecurrentMap(CoefficientMap):
    """The kernels and the bias of a recurrent layer that `is_known`.

    Args:
        layer: the layer, built.
        input_shape: `(times, features)`.
    """

    names = ("kernel", "recurrent_kernel", "bias")

    def __init__(self, layer, input_shape):
        self.layer = cell = layer.cell
        self._is_backward, (times, size) = layer.go_backwards, input_shape
        # The two terms are separate.
        self._apart = type(layer) is keras.layers.GRU
        self._size, self._wide = size, cell.kernel.shape[-1]
        self._parts = [
            ConvolutionMap(
                cell,
                (times, entries),
                Part(filters=self._wide, use_bias=cell.use_bias and has_bias),
            )
            for entries, has_bias in ((size, True), (cell.units, self._apart))
        ]
        self.input_shape = (times, size + cell.units)
        self.output_shape = (times, self._wide * (1 + self._apart))
        self.held = sum(part.held for part in self._parts)

    # The layer -------------------------------------------------------------

    def run(self, inputs, weights, probed, mask=None):
        """Inputs of the map, and outputs of the layer at every time.

        Args:
            inputs: `(n, times, features)`.
            weights: of the cell.
            probed: function of all sums before the first time.
            mask: `None`, or `(n, times)` bools; states do not change where it
                is false.
        """
        kernel, recurrent, *bias = weights
        if self._is_backward:
            inputs = ops.flip(inputs, axis=1)
            mask = None if mask is None else ops.flip(mask, axis=1)
        sums = [ops.matmul(inputs, kernel)]
        if self._apart:
            sums.append(ops.zeros_like(sums[0]))
        if bias:
            rows = ops.reshape(bias[0], (-1, self._wide))
            sums = [z + rows[at] for at, z in enumerate(sums)]
        z = probed(ops.concatenate(sums, axis=-1))
        start = ops.zeros_like(z[:, 0, : self.layer.units])
        states = [start] * (1 + (type(self.layer) is keras.layers.LSTMCell))

        def step(states, given):
            z, *counts = given
            found = self._step(states, z, recurrent)
            return [
                ops.where(counts[0], *pair) if counts else pair[0]
                for pair in zip(found, states)
            ]

        given = [z] if mask is None else [z, mask[..., None]]
        found = _each(step, states, given)
        before = ops.concatenate([start[:, None], found[:, :-1]], axis=1)
        return ops.concatenate([inputs, before], axis=-1), found

    def _step(self, states, z, recurrent):
        """The states after one time."""
        before, *kept = states
        act, again = self.layer.activation, ops.matmul(before, recurrent)
        gate = getattr(self.layer, "recurrent_activation", None)
        if gate is None:
            return [act(z + again)]
        if kept:
            i, f, new, o = ops.split(z + again, 4, axis=-1)
            held = gate(f) * kept[0] + gate(i) * act(new)
            return [gate(o) * act(held), held]
        z, more = z[..., : self._wide], z[..., self._wide :] + again
        (z, reset, new), more = (ops.split(v, 3, axis=-1) for v in (z, more))
        z, reset = gate(z + more[0]), gate(reset + more[1])
        return [z * before + (1 - z) * act(new + reset * more[2])]

    # Coefficients of a record ----------------------------------------------

    def measured(self, inputs, delta):
        size, wide = self._size, self._wide
        given = (
            (inputs[..., :size], delta[..., :wide]),
            (inputs[..., size:], delta[..., -wide:]),
        )
        found = [part.measured(*one) for part, one in zip(self._parts, given)]
        return sum(squared for squared, _ in found), [v for _, v in found]

    def sums_of(self, found, scale):
        (kernel, *bias), (recurrent, *more) = (
            part.coefficients(one, scale)
            for part, one in zip(self._parts, found)
        )
        sums = [kernel, recurrent]
        if bias:
            shape = self.layer.bias.shape
            sums.append(ops.reshape(ops.concatenate([*bias, *more]), shape))
        return sums


def _each(step, states, given):
    """Outputs of a step at every time: `(n, times, units)`."""
    backend = keras.backend.backend()
    if backend == "torch":
        found = []
        for at in zip(*[ops.unstack(v, axis=1) for v in given]):
            states = step(states, at)
            found.append(states[0])
        return ops.stack(found, axis=1)
    given = [ops.transpose(v, (1, 0, 2)) for v in given]
    if backend == "tensorflow":
        import tensorflow as tf

        # Keras' loop has no bound, which XLA needs.
        step = tf.autograph.experimental.do_not_convert(step)
        found = tf.scan(step, given, states)
    else:
        _, found = ops.scan(lambda *at: (step(*at),) * 2, states, given)
    return ops.transpose(found[0], (1, 0, 2))
