"""One self-contained HTML page of what a command found.

`read` turns folders that `keras-fm compare`, `audit`, `compose` and
`reproduce` wrote into `Run`s, `render` turns those into a page.
"""

from keras_fm.lab.report.content import Run
from keras_fm.lab.report.page import render, write
from keras_fm.lab.report.readers import read

__all__ = ["Run", "read", "render", "write"]
