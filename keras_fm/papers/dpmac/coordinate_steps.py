"""One training step by auxiliary coordinates, up to per-record coefficients.

Every record n has its own copy z_k of the outputs of each hidden layer k, the
auxiliary coordinates. It has its own objective

    E_n = loss(a_K, y_n) + penalty / 2 sum_{k < K} ||z_k - f_k(a_k)||^2,

with a_k the affine outputs of layer k on z_{k-1} (z_0 are its features). The
coordinates are moved first, with fixed weights (Z-steps). Each record keeps
its coordinates to itself, so nothing is released. Given the coordinates, E_n
is a sum over layers. The weights of layer k enter E_n only through a_k:

    d E_n / d W_k = delta_nk [z_{n,k-1}; 1]^T,   delta_nk = d E_n / d a_k.

Derivatives are written out: the backend's automatic differentiation is not
used.
"""

from keras import ops

from keras_fm.per_example.stages import Meeting, Stack


class CoordinateSteps(Stack):
    """The objective of a stack and its Z-steps.

    Args:
        stages: list of `Stage`, from the features upwards.
        loss: a loss of `output_losses`.
        penalty: float > 0, for a coordinate's distance to its layer's output.
        optimizer: a `RecordOptimizer` of `len(stages) - 1` tensors.
        steps: int, Z-steps.
        project: whether coordinates are brought back to the range of their
            activation after the steps.
    """

    def __init__(self, stages, loss, penalty, optimizer, steps, project):
        super().__init__(stages, loss)
        self.penalty = penalty
        self.optimizer = optimizer
        self.steps = steps
        self.project = project

    def start(self, affine):
        """Coordinates of the forward pass, at distance 0 to every layer."""
        return [
            stage.activation.value(a)
            for stage, a in zip(self.stages[:-1], affine)
        ]

    def objective(self, features, z, y, weights):
        """`(n,)` values of E_n."""
        below = [features, *z]
        total = 0.0
        for index, stage in enumerate(self.stages):
            a = self.affine(index, below[index], weights)
            outputs = stage.activation.value(a)
            if index == len(z):
                return total + self.loss.value(outputs, y)
            missed = z[index] - outputs
            axes = tuple(range(1, len(missed.shape)))
            total = total + self.penalty / 2 * ops.sum(
                ops.square(missed), axis=axes
            )

    def gradients(self, z, y, weights, first):
        """d E_n / d z_k of every hidden layer.

        Args:
            z: coordinates.
            y: targets.
            weights: as `weights` gives them.
            first: outputs of the first layer, which no coordinate changes.
        """
        found = [self.penalty * (z[0] - first)]
        for index, stage in enumerate(self.stages):
            if index > 0:
                below = z[index - 1]
                a = self.affine(index, below, weights)
                delta = self._delta(index, a, z, y)
                back = stage.map.backward(delta, weights[index])
                # Between layers only the shape changes.
                back = ops.reshape(back, ops.shape(below))
                found[-1] = found[-1] + back
                if index < len(z):
                    missed = z[index] - stage.activation.value(a)
                    found.append(self.penalty * missed)
        return found

    def first_gradients(self, z, y, weights, affine):
        """`gradients` at the coordinates of the forward pass, from its affine
        outputs. Only the last hidden layer's are not zero."""
        delta = self.loss.slope(affine[-1], y)
        back = self.stages[-1].map.backward(delta, weights[-1])
        zeros = [ops.zeros_like(values) for values in z[:-1]]
        return [*zeros, ops.reshape(back, ops.shape(z[-1]))]

    def _delta(self, index, a, z, y):
        if index == len(z):
            return self.loss.slope(a, y)
        f = self.stages[index].activation
        return self.penalty * (f.value(a) - z[index]) * f.slope(a)

    def _curvature(self, index, a, z, y):
        if index == len(z):
            return self.loss.curvature(a, y)
        f = self.stages[index].activation
        missed = f.value(a) - z[index]
        square = ops.square(f.slope(a))
        return self.penalty * (square + missed * f.curvature(a))

    def coordinates(self, features, y, weights, affine=None):
        """The coordinates after the Z-steps."""
        if affine is None:
            affine = self.forward(features, weights)
        z = self.start(affine)
        if not z:
            return z

        first = z[0]

        def gradients(z):
            return self.gradients(z, y, weights, first)

        start = self.first_gradients(z, y, weights, affine)
        z = self.optimizer.minimize(gradients, z, self.steps, start)
        if self.project:
            z = [
                ops.clip(values, *stage.activation.bounds)
                for values, stage in zip(z, self.stages)
            ]
        return z

    def meetings(self, features, z, y, weights, affine, curvature=False):
        """A `Meeting` for every layer, at the given coordinates."""
        below = [features, *z]
        found = []
        for index in range(len(self.stages)):
            a = affine[0]
            if index > 0:
                a = self.affine(index, z[index - 1], weights)
            curved = self._curvature(index, a, z, y) if curvature else None
            found.append(
                Meeting(
                    inputs=self.stages[index].read(below[index]),
                    delta=self._delta(index, a, z, y),
                    curvature=curved,
                )
            )
        return found
