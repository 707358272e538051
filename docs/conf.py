"""The site: `python -m sphinx -W docs build/docs`.

The pages are plain Markdown that reads well without Sphinx, too; `api/` lists
every public symbol (tests/test_docs.py checks that it does).
"""

import inspect
import os
import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "docs")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_fm.version import __version__  # noqa: E402

project = "keras-fm"
author = "The keras-fm authors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "markdown_docstrings",
    "number_tables",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    # MathJax in the built site: it opens without a network.
    "sphinx-mathjax-offline",
]

myst_enable_extensions = ["dollarmath"]
# A line that begins with "% at epsilon 1" is text, not a comment.
myst_disable_syntax = ["myst_line_comment"]
# Links to headings, `page.md#a-heading`, down to the third level.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
# What a class takes over from Keras is documented by Keras.
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"keras-fm {__version__}"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

# Pages of the repository's root; on the site they stand beside the others.
_ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def _root_pages(app, page, source):
    text = source[0]
    if f"{page.upper()}.md" in _ROOT_PAGES:
        text = (_ROOT / f"{page.upper()}.md").read_text(encoding="utf-8")
        text = text.replace("](docs/", "](")
    up = "../" * page.count("/")
    for name in _ROOT_PAGES:
        text = text.replace(f"]({up}../{name}", f"]({up}{name.lower()}")
        text = text.replace(f"]({name}", f"]({name.lower()}")
    source[0] = text


def _signature(app, what, name, obj, options, signature, returned):
    """Keras' `__new__` takes anything and hides what `__init__` takes."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    arguments = inspect.signature(obj.__init__)
    kept = list(arguments.parameters.values())[1:]
    return str(arguments.replace(parameters=kept)), returned


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _root_pages)
    app.connect("autodoc-process-signature", _signature)
