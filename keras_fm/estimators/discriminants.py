"""Logits of classes from one release of noisy sums.

The release is about least squares: an output is a straight line, whose values
are no good probabilities and, of several classes, often not in the right order.
If the outputs of every class are normal with one covariance, the logits are an
affine map of them (linear discriminant analysis; Hastie, Tibshirani and Buja
1994). It follows from the same sums, so it costs nothing.
"""

import numpy as np

from keras_fm.heads.squared_error import without_noise

# The largest squared correlation of outputs and classes, the least probability
# of a class, the least share of a variance that is no noise. Chosen with a look
# at made-up tables and at those of docs/results/tables.md.
_MOST, _LEAST, _KEPT = 0.95, 1e-3, 0.05
# The least number of whole records that all of them may count for.
_COUNTED = 0.1


def of_release(release, weights, constant, n):
    """The map from outputs `(n, M)` of a layer to logits, `(matrix, offset)`.

    Args:
        release: a `CrossEntropyRelease` of sums.
        weights: `(m, M)`, the layer's, for features with the constant.
        constant: value of the last feature.
        n: number of records, public. They count less if they were scaled back.
    """
    second, linear = release.quadratic, release.linear
    noise = release.mechanism.coordinate_variance(release.query.size)
    entry = release.query.off_diagonal_stddev(release.mechanism) ** 2
    outputs = weights.shape[1]
    # The loss about 0 is that of least squares on 1/M + z/4.
    weights, classes = weights / 4, max(2, outputs)
    several = outputs > 1
    # Of several classes the sums of constants have the least noise.
    counted = second[-1, -1] / constant**2
    if several:
        counted = linear[-1].sum() / constant
    n = np.clip(counted, _COUNTED * n, n)
    mean, shares = second[:, -1] / (constant * n), linear[-1] / (constant * n)
    mean[-1] = constant
    # No mean is longer than the longest row.
    mean *= min(1.0, release.query.feature_bound / np.linalg.norm(mean))
    error = noise + entry * np.square(weights).sum(axis=0).mean()
    unsure = error**0.5 / (constant * n)
    # Variance of the outputs, less what noise of the sums adds to it.
    values, vectors = np.linalg.eigh(second / n - np.outer(mean, mean))
    values, _ = without_noise(values, entry / n**2)
    spread = np.sqrt(values)[:, None] * vectors.T
    varied = spread @ weights
    values, vectors = np.linalg.eigh(varied.T @ varied)
    ridged, _ = release.minimise()
    added = error * np.square(np.linalg.solve(ridged, spread.T)).sum()
    values = np.maximum(values - added, _KEPT * np.maximum(values, 0))
    root, centre = np.sqrt(values)[:, None] * vectors.T, mean @ weights
    if not several:
        # Of two classes the outputs are -z and z.
        root, centre, shares = (
            np.concatenate([-v, v], -1) for v in (root, centre, shares)
        )
        shares = shares + 1 / 2
    # Equal classes if noise hides how they differ.
    apart = shares - 1 / classes
    known = 1 - unsure**2 / max(np.mean(apart**2), unsure**2, 1e-12)
    least = np.clip(unsure, _LEAST, 1 / classes)
    likely = 1 / classes + known * apart
    likely = np.clip(likely, least, 1 - (classes - 1) * least)
    likely /= likely.sum()
    root = root / np.sqrt(likely)
    found, vectors = np.linalg.eigh(root.T @ root)
    found = np.clip(found, 0, 1)
    # Noise on a mean may move a logit by about one.
    most = np.clip(1 - classes * unsure, 0, _MOST)
    gain = 1 / (1 - np.minimum(found, most))
    rays = vectors / np.sqrt(likely)[:, None]
    matrix = (rays * gain) @ rays.T
    offset = np.log(likely) - (rays**2 * (found * gain)).sum(axis=1) / 2
    offset -= matrix @ centre
    if not several:
        turn = np.array([[-1.0, 1.0]])
        return turn @ matrix @ turn.T / 4, turn @ offset
    # Noise moves outputs alike, but logits of rare classes most: with much
    # noise the outputs are better.
    trust = max(0.0, 1 - 3 * classes * unsure)
    matrix = trust * matrix / 4 + (1 - trust) * np.eye(classes)
    return matrix, trust * offset
