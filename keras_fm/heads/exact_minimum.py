"""The minimum of a cross-entropy, with a proven bound on the error.

Newton's method stops when the gradient is small, and the gradient's own error
is known: features lie on a grid, weights and residuals are split into pieces
of few bits, so their products are exact (docs/proofs/perturbed_loss.md, "The
machine").
"""

import math

import numpy as np
from scipy import linalg

from keras_fm.heads.coefficient_grid import EXACT_ROWS, CoefficientGrid
from keras_fm.kernel.sums import UNIT_ROUNDOFF, chunks

# The bound on the gradient's error holds for at most so many.
MOST_RECORDS = 2**24
# Grid steps of the two pieces of a residual.
_RESIDUALS = 2.0**-24, 2.0**-48
# A step of Newton's method may be inexact: the share of the gradient that it
# may leave, and the most products of the curvature that it takes.
_INEXACT, _MOST_PRODUCTS = 1e-4, 300


def check_count(n):
    """Refuses more records than the proof covers."""
    if n > MOST_RECORDS:
        raise ValueError(
            f"A perturbed loss takes at most {MOST_RECORDS} records: it holds "
            "them in memory, and its proof covers no more. Nothing of them "
            "was released."
        )


class Records:
    """Records in memory. They are private: never save or print them.

    Args:
        query: a `PerturbedLossQuery`.

    Attributes:
        tolerance: L2 bound on the gradient at the weights from `minimum`.
    """

    def __init__(self, query):
        self._query, self._read = query, []
        self._grid = CoefficientGrid(query.feature_bound, 1.0)
        roundings = (20 * query.num_outputs + 64) * UNIT_ROUNDOFF
        # Four times the largest error of the computed gradient.
        self.tolerance = 4 * MOST_RECORDS * query.feature_bound * roundings
        # Bits of a weight's piece: products with features stay below 2^52.
        root = math.ceil(math.log2(query.num_features) / 2)
        self._bits = 52 - 14 - root

    def add(self, rows, labels):
        """Adds rows, inside their bounds, and the indices of their classes.
        The rows are overwritten.

        Raises:
            ValueError: if there are more than `MOST_RECORDS`.
        """
        self._read.append((self._grid.narrow(rows), labels))
        check_count(sum(len(y) for _, y in self._read))

    def _blocks(self):
        """Rows and labels in blocks that one exact sum can take."""
        rows, labels = map(np.concatenate, zip(*self._read))
        parts = chunks(len(labels), EXACT_ROWS)
        return [(rows[part], labels[part]) for part in parts]

    def minimum(self, linear, ridge):
        """Minimises the sum of all losses, <linear, W> and
        `ridge ||W||^2 / 2`, until the gradient is at most `tolerance`.

        Args:
            linear: `(m, M)`.
            ridge: float > 0, a power of two.

        Returns:
            `(m, M)` float64.
        """
        blocks = self._blocks()
        pieces = self._pieces(np.zeros_like(linear), 0.0)
        gradient, known = self._gradient(blocks, pieces, linear, ridge)
        least = np.linalg.norm(gradient)
        while np.linalg.norm(gradient) > self.tolerance / 2:
            step = self._newton(gradient, known, ridge)
            # The last share descends from any weights (self-concordance).
            far = 1.5 * self._query.feature_bound * np.linalg.norm(step)
            for share in (1.0, 0.5, 0.25, math.log1p(far) / far):
                high = _sum(pieces)
                low = _sum([*pieces, -high]) - share * step
                tried = self._pieces(high, low)
                gradient, known = self._gradient(blocks, tried, linear, ridge)
                length = np.linalg.norm(gradient)
                if length <= (1 - share / 2) * least:
                    break
            pieces, least = tried, min(least, length)
        return _sum(pieces)

    def _pieces(self, high, low):
        """Four arrays of few bits each. Their sum is about `high + low`."""
        found, rest = [], high
        for more in (0.0, low, 0.0, 0.0):
            rest = rest + more
            exponent = math.frexp(np.abs(rest).max(initial=0.0))[1]
            step = 2.0 ** max(exponent - self._bits, -900)
            found.append(step * np.rint(rest / step))
            rest = rest - found[-1]
        return found

    def _gradient(self, blocks, pieces, linear, ridge):
        """The gradient, and the features, probabilities and class weights of
        every block."""
        known, sums = [], np.zeros((2, *linear.shape), np.int64)
        outputs = self._query.num_outputs
        targets = np.eye(outputs) if outputs > 1 else np.array([[0.0], [1.0]])
        weights = np.array(self._query.class_weights or [1.0] * (outputs + 1))
        for narrow, labels in blocks:
            h = narrow.astype(np.float64)
            p = self._probabilities(h, pieces)
            weight = weights[labels][:, None]
            delta = weight * (p - targets[labels])
            for total, step in zip(sums, _RESIDUALS):
                whole = np.rint(delta / step)
                delta -= step * whole
                total += (h.T @ whole).astype(np.int64)
            known.append((narrow, p, weight))
        scaled = [
            total.astype(np.float64) * (step * self._grid.feature_step)
            for total, step in zip(sums, _RESIDUALS)
        ]
        return _sum([*scaled, linear, *(ridge * p for p in pieces)]), known

    def _probabilities(self, h, pieces):
        parts = [self._grid.feature_step * (h @ piece) for piece in pieces]
        if self._query.num_outputs > 1:
            # These differences are exact, too.
            first = sum(parts[::-1]).argmax(axis=1)[:, None]
            parts = [z - np.take_along_axis(z, first, 1) for z in parts]
        a, b, *rest = parts
        z = a + b
        moved = z - a
        # Knuth's two-sum adds back the rounding error of `a + b`.
        z = z + ((a - (z - moved)) + (b - moved) + sum(rest))
        if self._query.num_outputs == 1:
            return 0.5 + 0.5 * np.tanh(z / 2)
        p = np.exp(z)
        return p / p.sum(axis=1, keepdims=True)

    # Newton's step: no proof rests on it ---------------------------------

    def _newton(self, gradient, known, ridge):
        """The inverse of the curvature times the gradient, by conjugate
        gradients. One curvature for all outputs is the preconditioner; for a
        single output it is that output's own."""
        unit, outputs = self._grid.feature_step, self._query.num_outputs
        shared = ridge * np.eye(len(gradient))
        for narrow, p, weight in known:
            mean = (weight * p * (1 - p)).mean(axis=1, keepdims=True)
            rows = narrow * (unit * np.sqrt(mean))
            shared += rows.T @ rows
        factor = linalg.cho_factor(shared)

        def curved(v):
            found = ridge * v
            for narrow, p, weight in known:
                rows = narrow * unit
                z = weight * p * (rows @ v)
                if outputs == 1:
                    z *= 1 - p
                else:
                    z -= p * z.sum(axis=1, keepdims=True)
                found = found + rows.T @ z
            return found

        step, rest, direction, last = 0.0, gradient, 0.0, 1.0
        for _ in range(_MOST_PRODUCTS):
            inner = linalg.cho_solve(factor, rest)
            size = np.vdot(inner, rest)
            direction = inner + size / last * direction
            last, image = size, curved(direction)
            by = size / np.vdot(direction, image)
            step, rest = step + by * direction, rest - by * image
            if np.linalg.norm(rest) <= _INEXACT * np.linalg.norm(gradient):
                break
        return step


def _sum(arrays):
    """The sum of the arrays, rounded once."""
    flat = [np.ravel(a).tolist() for a in arrays]
    return np.array([math.fsum(v) for v in zip(*flat)]).reshape(
        np.shape(arrays[0])
    )
