"""How far each polynomial is from the logistic function.

    python benchmarks/polynomials.py

Prints the table of docs/polynomials.md and draws docs/polynomials.png. No
data, no randomness: a second run gives the same numbers.
"""

import numpy as np
from absl import app, flags

from keras_fm.public import polynomials

_PLOT = flags.DEFINE_string("plot", "docs/polynomials.png", "Path of the plot.")

RADII = (1.0, 5.0)
TABLE_DEGREES = (1, 2, 3, 5, 7, 9)
PLOT_DEGREES = range(1, 16)
sigmoid = polynomials.ACTIVATIONS["sigmoid"]


def print_table():
    names = ("Chebyshev", "its bound", "Taylor", "piecewise, L pieces")
    print(
        "| L |"
        + "".join(f" {name}, r = {r:g} |" for r in RADII for name in names)
        + " published |"
    )
    print("|---|" + "---|" * (len(names) * len(RADII) + 1))
    for degree in TABLE_DEGREES:
        cells = []
        for r in RADII:
            bounds = polynomials.error_bounds("sigmoid", degree, r)
            cells += [
                polynomials.chebyshev("sigmoid", degree, r).error,
                min(bounds.chebyshev, bounds.ellipse),
                polynomials.taylor("sigmoid", degree, r).error,
                polynomials.piecewise("sigmoid", degree, r).error,
            ]
        row = [f"{error:.1e}" for error in cells]
        odd = degree % 2 == 1
        row.append(f"{polynomials.published(degree).error:.3f}" if odd else "")
        print(f"| {degree} | " + " | ".join(row) + " |")
    made = polynomials.published()
    z = np.linspace(-1, 1, 200_001)
    near = np.abs(made(z) - sigmoid(5 * z)).max()
    print(
        f"\nThe published polynomial misses sigmoid(z) by {made.error:.3f} "
        f"and sigmoid(5z) by {near:.3f} on [-1, 1]."
    )


def draw_functions(axes):
    z = np.linspace(-1, 1, 801)
    coarse = np.linspace(-1, 1, 9)
    # Four of them lie on the logistic function to the width of a line.
    axes.plot(z, sigmoid(z), color="0.75", lw=9, label="sigmoid(z)")
    axes.plot(
        z, polynomials.taylor("sigmoid", 7)(z), "C2", lw=5, label="Taylor 7"
    )
    axes.plot(
        z,
        polynomials.chebyshev("sigmoid", 7)(z),
        "C0",
        lw=2.5,
        label="Chebyshev 7",
    )
    axes.plot(
        z,
        polynomials.chebyshev("sigmoid", 3)(z),
        "k:",
        lw=1.5,
        label="Chebyshev 3",
    )
    axes.plot(
        coarse,
        polynomials.piecewise("sigmoid", 8)(coarse),
        "o",
        color="C4",
        ms=5,
        label="piecewise, 8 pieces (knots)",
    )
    axes.plot(z, polynomials.published()(z), "C3", lw=2, label="published 7")
    axes.plot(z, sigmoid(5 * z), "k--", lw=1.2, label="sigmoid(5z)")
    axes.set(
        xlabel="z",
        ylabel="value",
        title="The functions on [-1, 1]",
        xticks=[-1, -0.5, 0, 0.5, 1],
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=9)


def draw_errors(axes, radius):
    odd = [degree for degree in PLOT_DEGREES if degree % 2]
    taylor = [polynomials.taylor("sigmoid", d, radius).error for d in odd]
    series = [polynomials.chebyshev("sigmoid", d, radius).error for d in odd]
    bounds = [polynomials.error_bounds("sigmoid", d, radius) for d in odd]
    lines = [polynomials.piecewise("sigmoid", d, radius).error for d in odd]
    axes.semilogy(odd, taylor, "s-", color="C2", label="Taylor")
    axes.semilogy(odd, lines, "v-", color="C4", label="piecewise, L pieces")
    axes.semilogy(odd, series, "o-", color="C0", label="Chebyshev")
    axes.semilogy(
        odd,
        [b.chebyshev for b in bounds],
        "--",
        color="C0",
        label="bound by the derivative",
    )
    axes.semilogy(
        odd,
        [b.ellipse for b in bounds],
        ":",
        color="C0",
        lw=2,
        label="bound by the ellipse",
    )
    if radius == 1:
        axes.semilogy(
            odd,
            [polynomials.published(d).error for d in odd],
            "D-",
            color="C3",
            label="published (only on [-1, 1])",
        )
    axes.set(
        xlabel="degree L (odd: an even one adds nothing)",
        ylabel="largest error",
        title=f"Error on [-{radius:g}, {radius:g}]",
        xticks=odd,
    )
    axes.grid(alpha=0.3)


def draw(path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    left, *rest = figure.subplots(1, 1 + len(RADII))
    draw_functions(left)
    for axes, radius in zip(rest, RADII):
        draw_errors(axes, radius)
    rest[0].legend(loc="lower left", fontsize=9)
    figure.savefig(path, dpi=110)


def main(_):
    print_table()
    draw(_PLOT.value)


if __name__ == "__main__":
    app.run(main)
