"""One self-contained HTML page of what a command found.

`read` turns folders that `keras-fm compare`, `audit`, `compose` and
`reproduce` wrote into `Run`s (`runs.py`), `render` turns those into a page
(`page.py`).
"""

from keras_fm.lab.report.page import Run, render, write
from keras_fm.lab.report.runs import read

__all__ = ["Run", "read", "render", "write"]
