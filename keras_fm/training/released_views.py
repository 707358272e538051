"""Tables and pictures of releases for TensorBoard.

Every function here takes releases and public numbers only.
"""

import io
import math

import numpy as np

_SIZE = (4.8, 3.0)


def signal_to_noise(release):
    """Standard deviation of the noise on a coordinate of a release, and the
    signal over it: the root mean square of the vector less the noise's share.
    `None` if the release has no such vector."""
    vector = release.vector()
    if vector is None:
        return None
    variance = release.mechanism.coordinate_variance(release.query.size)
    signal = max(0.0, float(np.mean(np.square(vector))) - variance)
    return math.sqrt(variance), math.sqrt(signal / variance)


def spectrum(release):
    """Eigenvalues of the released second moment, descending, and the edge
    below which they may be noise alone; `None` for other releases."""
    if getattr(release.query, "public_features", False):
        return None
    if not hasattr(release, "noise_edge"):
        return None
    matrix = release.statistics.get("quadratic")
    if matrix is None:
        matrix = release.moment(2)
    return np.linalg.eigvalsh(matrix)[::-1], release.noise_edge()


def table(releases):
    """A Markdown table with one line for each release.

    Args:
        releases: dict from names to releases.
    """
    lines = [
        "| release | coefficients | noise | signal / noise | directions |",
        "|---|---|---|---|---|",
    ]
    for name, release in releases.items():
        size = sum(array.size for array in release.statistics.values())
        found, seen = signal_to_noise(release), spectrum(release)
        noise = ratio = directions = "-"
        if found:
            noise, ratio = (f"{number:.3g}" for number in found)
        if seen:
            values, edge = seen
            above = int(np.sum(values > edge))
            directions = f"{above} of {len(values)} above the noise"
        lines.append(f"| {name} | {size} | {noise} | {ratio} | {directions} |")
    lines += [
        "",
        "noise: standard deviation on one coordinate. signal / noise: root "
        "mean square of the released vector without its expected noise, "
        "divided by the noise. Near 1, more epochs do not help; more records, "
        "better features or a larger epsilon do.",
    ]
    return "\n".join(lines)


def draw_ratios(releases):
    """Signal over noise of each release, as PNG; `None` without releases."""
    found = {name: signal_to_noise(r) for name, r in releases.items()}
    found = {name: pair[1] for name, pair in found.items() if pair}
    if not found:
        return None
    figure, axes = _panel((_SIZE[0], 1.2 + 0.4 * len(found)))
    bars = axes.barh(list(found), list(found.values()), color="#1f5fbf")
    axes.bar_label(bars, fmt="%.3g", padding=3)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("signal over noise of the released coefficients")
    return _png(figure)


def draw_spectrum(release):
    """Eigenvalues and the noise's edge, as PNG; `None` for releases without
    eigenvalues."""
    seen = spectrum(release)
    if seen is None:
        return None
    values, edge = seen
    figure, axes = _panel(_SIZE)
    places = np.arange(1, len(values) + 1)
    axes.plot(places, values, "o-", markersize=3, color="#1f5fbf")
    axes.axhspan(-edge, edge, color="#b8480b", alpha=0.15)
    axes.axhline(edge, color="#b8480b", linewidth=1)
    axes.set_yscale("symlog", linthresh=max(edge, 1e-12))
    axes.set_xlabel("direction")
    axes.set_ylabel("released eigenvalue")
    above = int(np.sum(values > edge))
    axes.set_title(
        f"{above} of {len(values)} directions above the noise (shaded)",
        fontsize=10,
    )
    return _png(figure)


def _panel(size):
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=110)
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    return figure, axes


def _png(figure):
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
