"""A table of vectors, one for each token, as a map of every record.

A record's coefficient is a table: row t is the sum of the derivatives `delta_p`
at the places p that hold token t. Its squared norm is the sum of `<delta_p,
delta_q>` over pairs of places with the same token. The table of a single record
is never formed.
"""

from keras_fm.per_example import direct_ops as ops
from keras_fm.per_example.affine_maps import (
    UNDERFLOW,
    CoefficientMap,
    joined,
    scaled,
    squared_length,
    without_cancelling,
)


class EmbeddingMap(CoefficientMap):
    """The lookup of a `keras.layers.Embedding`.

    Tokens outside the table count as the nearest one in it, and NaN as the
    first.

    Args:
        layer: the layer.
        input_shape: `(tokens,)`.
    """

    names = ("embeddings",)

    def __init__(self, layer, input_shape):
        self.layer = layer
        self.input_shape = tuple(input_shape)
        self.output_shape = (*input_shape, layer.output_dim)
        self._places = input_shape[0]

    def _tokens(self, inputs):
        known = ops.clip(inputs, 0, self.layer.input_dim - 1)
        known = ops.where(inputs == inputs, known, ops.zeros_like(known))
        return ops.cast(known, "int32")

    def forward(self, inputs, weights):
        return ops.take(weights[0], self._tokens(inputs), axis=0)

    def measured(self, inputs, delta):
        given = (inputs, delta)
        tokens = ops.reshape(self._tokens(inputs), (-1, self._places))
        delta = self._by_place(delta)
        alike = ops.expand_dims(tokens, 2) == ops.expand_dims(tokens, 1)
        between = ops.matmul(delta, ops.transpose(delta, (0, 2, 1)))
        alike = ops.cast(alike, "float32")
        total = joined(alike, between, self.layer.output_dim)
        returned = squared_length(delta)
        # Squares may round to 0 if a threshold is as small. Both are lengths of
        # records already.
        total, returned = total + UNDERFLOW, returned + UNDERFLOW
        more = without_cancelling(self._places, returned)
        return total + more, given

    def sums_of(self, found, scale):
        inputs, delta = found
        return [
            ops.segment_sum(
                ops.reshape(scaled(delta, scale), (-1, self.layer.output_dim)),
                ops.reshape(self._tokens(inputs), (-1,)),
                num_segments=self.layer.input_dim,
            )
        ]

    def _by_place(self, delta):
        return ops.reshape(delta, (-1, self._places, self.layer.output_dim))
