"""What a record's own loss has to say to every layer of a plain network.

With a_k the affine outputs of layer k on what the one below gives, the weights
of layer k meet record n only through a_k:

    d loss_n / d W_k = delta_nk [u_nk; 1]^T,   delta_nk = d loss_n / d a_k,

u_nk what the layer reads. Back-propagation gives every delta of a batch at
once, and no derivative by weights is needed for it. Derivatives are written
out, so no backend's automatic differentiation is used.
"""

from keras_fm.stacks.stages import Meeting, Stack


class BackPropagation(Stack):
    """A network's gradients by its affine outputs, record by record."""

    def meetings(self, features, y, weights, affine):
        """A `Meeting` for every layer.

        Args:
            features: `(n, ...)`, what the first layer reads.
            y: targets.
            weights: as `weights` gives them.
            affine: as `forward` gives them.
        """
        delta = self.loss.slope(affine[-1], y)
        found = []
        for index in reversed(range(len(self.stages))):
            stage, z = self.stages[index], features
            if index > 0:
                below, a = self.stages[index - 1], affine[index - 1]
                z = below.activation.value(a)
            found.insert(0, Meeting(inputs=stage.read(z), delta=delta))
            if index > 0:
                back = stage.map.backward(delta, weights[index])
                delta = stage.back(z, back) * below.activation.slope(a)
        return found
