"""Gradient and diagonal Hessian of a network's error, as factors per record.

a_k are the affine outputs of layer k, z_k = f_k(a_k), and E is the error of
one record. Backwards from the output layer:

    delta_k = dE/da_k,     delta_k = f'_k (W_{k+1} delta_{k+1}),
    b_k = d2E/da_k^2,      b_k = f'_k^2 (W_{k+1}^2 b_{k+1})
                                 + f''_k (W_{k+1} delta_{k+1}),

W^2 is taken entry by entry. The gradient delta_i z_j is exact. The curvature
b_i z_j^2 approximates the diagonal of the Hessian as in the paper: second
derivatives of E by two different units of the same layer are left out. They
vanish for the output layer, since every loss here is a sum over outputs. The
last two layers are therefore exact; layers below them are not.

`"majorized"` also leaves out the term with f'' (the Gauss-Newton matrix), so
that b >= 0 wherever the loss is convex.

Source: Manco and Pirro, "Differential privacy and neural networks: a
preliminary analysis", SEBD 2018, equations 1 to 6.
"""

from keras import ops

from keras_fm.per_example.stages import Stack


class NetworkExpansion(Stack):
    """The recursions of a stack of Dense layers.

    Args:
        stages: list of `Stage`, from the features upwards.
        loss: a loss of `output_losses` that is a sum over outputs.
        curvature: `"majorized"` or `"diagonal"`.
    """

    def __init__(self, stages, loss, curvature):
        super().__init__(stages, loss)
        self.curvature = curvature

    def value(self, features, y, weights):
        """`(n,)` errors of the network."""
        affine = self.forward(features, weights)
        return self.loss.value(self.stages[-1].activation.value(affine[-1]), y)

    def factors(self, features, y, weights, curvature=None):
        """Factors of the coefficients of every record.

        Args:
            features: `(n, inputs)`, inputs of the first layer.
            y: `(n, outputs)` targets.
            weights: as `weights` returns them; the point of expansion.
            curvature: `None` for that of this object, or another.

        Returns:
            list of `(z, delta, b)` for every layer: `(n, inputs)` with the
            constant 1 of a bias appended, `(n, units)`, `(n, units)`.
        """
        affine = self.forward(features, weights)
        below = zip(self.stages, affine[:-1])
        inputs = [features, *(s.activation.value(a) for s, a in below)]
        delta = self.loss.slope(affine[-1], y)
        b = self.loss.curvature(affine[-1], y)
        diagonal = (curvature or self.curvature) == "diagonal"
        if not diagonal:
            # The squared error of a saturated unit may be concave.
            b = ops.maximum(b, 0.0)
        found = []
        for index in reversed(range(len(self.stages))):
            stage = self.stages[index]
            z = stage.map.augmented(inputs[index])
            found.append((z, delta, b))
            if index > 0:
                kernel = weights[index][0]
                a = affine[index - 1]
                delta, b = self._back(index, kernel, a, delta, b, diagonal)
        return found[::-1]

    def _back(self, index, kernel, a, delta, b, diagonal):
        """Propagates from layer `index` to the affine outputs a below it."""
        stage, f = self.stages[index], self.stages[index - 1].activation
        returned = stage.map.backward(delta, [kernel])
        curved = stage.map.backward(b, [ops.square(kernel)])
        slope = f.slope(a)
        curved = ops.square(slope) * curved
        if diagonal:
            curved = curved + f.curvature(a) * returned
        return slope * returned, curved
