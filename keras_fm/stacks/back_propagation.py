"""What a record's own loss has to say to every layer of a plain network.

With a_k the affine outputs of layer k on what the one below gives, the weights
of layer k meet record n only through a_k:

    d loss_n / d W_k = delta_nk [u_nk; 1]^T,   delta_nk = d loss_n / d a_k,

u_nk what the layer reads. Back-propagation gives every delta of a batch at
once, and no derivative by weights is needed for it.
"""

from keras_fm.stacks.pull_backs import pull_back
from keras_fm.stacks.stages import Meeting, Stack


class BackPropagation(Stack):
    """A network's gradients by its affine outputs, record by record.

    Args:
        stages, loss: as of every `Stack`.
        views: int, rows of a batch that are one record, whose loss is the
            mean of theirs.
    """

    def __init__(self, stages, loss, views=1):
        super().__init__(stages, loss)
        self.views = views

    def meetings(self, features, y, weights, affine):
        """A `Meeting` for every layer.

        Args:
            features: `(n, ...)`, what the first layer reads.
            y: targets.
            weights: as `weights` gives them.
            affine: as `forward` gives them.
        """
        delta = self.loss.slope(affine[-1], y) / self.views
        found = []
        for index in reversed(range(1, len(self.stages))):
            inputs, back = pull_back(self._between(index), affine[index - 1])
            found.insert(0, Meeting(inputs=inputs, delta=delta))
            delta = self.stages[index].map.backward(delta, weights[index])
            delta = back(delta)
        inputs = self.stages[0].read(features)
        return [Meeting(inputs=inputs, delta=delta), *found]

    def _between(self, index):
        """What layer `index` reads, from the affine outputs of the one
        below."""
        below, stage = self.stages[index - 1 : index + 1]
        return lambda a: stage.read(below.activation.value(a))
