"""Runs as one page of HTML, made by templates that escape everything."""

import base64
import datetime
import functools
import hashlib
import itertools
import os

import jinja2
import markupsafe

from keras_fm.lab.engine import files
from keras_fm.lab.report import figures
from keras_fm.version import __version__


def render(runs):
    """One self-contained page.

    Args:
        runs: sequence of `Run`, at least one.

    Returns:
        str, HTML that loads nothing: style, script and pictures are in it,
        and its content security policy forbids all else.

    Raises:
        ValueError: without a run.
    """
    runs = tuple(runs)
    if not runs:
        raise ValueError("A page needs at least one run.")
    environment = _environment()
    numbers = itertools.count(1)

    def drawing(svg):
        """SVG of this package, with ids that no other drawing has."""
        prefix = f"d{next(numbers)}-"
        return markupsafe.Markup(svg.replace(figures.ID_PREFIX, prefix))

    script = _source(environment, "page.js")
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    now = datetime.datetime.now(datetime.timezone.utc)
    return environment.get_template("page.html.j2").render(
        runs=runs,
        drawing=drawing,
        style=markupsafe.Markup(_source(environment, "page.css")),
        script=markupsafe.Markup(script),
        script_hash=base64.b64encode(digest).decode("ascii"),
        version=__version__,
        now=now.strftime("%Y-%m-%d %H:%M UTC"),
    )


@functools.cache
def _environment():
    return jinja2.Environment(
        loader=jinja2.PackageLoader("keras_fm.lab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(environment, name):
    return environment.loader.get_source(environment, name)[0]


def write(runs, path):
    """Writes the page.

    Args:
        runs: sequence of `Run`.
        path: str, a file that ends in `.html`.

    Raises:
        ValueError: if the path is no name of a page.
        OSError: if it cannot be written.
    """
    if not str(path).lower().endswith((".html", ".htm")):
        raise ValueError(
            f"The name of a page must end in .html. Received: {path!r}"
        )
    text = render(runs)
    files.write_text(*os.path.split(os.path.abspath(path)), text)
