"""What a record's own loss has to say to every layer of a network.

With a_k the affine outputs of layer k, the weights of layer k meet record n
only through a_k:

    d loss_n / d W_k = delta_nk [u_nk; 1]^T,   delta_nk = d loss_n / d a_k,

u_nk what the layer reads. Derivatives by a_k give every delta of a batch at
once, and no derivative by weights is needed for it.
"""

from keras import ops

from keras_fm.stacks.pull_backs import pull_back
from keras_fm.stacks.stages import Meeting, Stack


class BackPropagation(Stack):
    """A network's gradients by its affine outputs, record by record.

    Args:
        graph: a `RecordGraph`.
        loss: of `output_losses`.
        views: int, rows of a batch that are one record, whose loss is the
            mean of theirs.
    """

    def __init__(self, graph, loss, views=1):
        super().__init__(graph.stages, loss)
        self.graph, self.views = graph, views

    def meetings(self, features, y, weights, masks=None):
        """A `Meeting` for every layer, and the last one's affine outputs.

        Args:
            features: `(n, ...)`, what the first layer reads.
            y: targets.
            weights: as `weights` gives them.
            masks: of a training step, as the graph draws them, or `None`.
        """
        n = ops.shape(features)[0]
        taps = [
            ops.zeros((n, *stage.map.output_shape), features.dtype)
            for stage in self.stages[:-1]
        ]
        (a, read), back = pull_back(
            lambda taps: self.graph.run(features, weights, taps, masks), taps
        )
        last = self.loss.slope(a, y) / self.views
        deltas = [*back(last), last] if taps else [last]
        return [
            Meeting(inputs=inputs, delta=delta)
            for inputs, delta in zip(read, deltas)
        ], a
