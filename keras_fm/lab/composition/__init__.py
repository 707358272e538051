"""The privacy cost of many mechanisms together, by every composition theorem.

A `Plan` lists mechanisms and how often each runs. Each method computes an
epsilon from it and a target delta. There are basic, advanced and optimal
composition, each with and without amplification by sampling, Renyi moments, and
privacy loss distributions. All rows of kind "bound" are upper bounds on the
same quantity: use the smallest. Rows of kind "as printed" are formulas of the
survey of Manco and Pirro (2018) that drop terms; they are not bounds.

Example:

>>> step = Stage(mechanism="pure", epsilon=0.1, count=1000)
>>> for row in compose(Plan([step]), 1e-5, ["basic", "optimal"]):
...     print(row.method, round(row.epsilon, 2))
basic 100.0
optimal 17.79
"""

from keras_fm.lab.composition.plan import Plan, Stage
from keras_fm.lab.composition.side_by_side import compose, table

__all__ = [
    "Plan",
    "Stage",
    "compose",
    "table",
]
