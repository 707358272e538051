"""Docstrings are Markdown, as Keras writes them; autodoc reads another markup.

This Sphinx extension turns what the docstrings use of it (`code`, fenced
code, vertical bars that mean an absolute value) into that markup, before
napoleon sees the sections.
"""

import re

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
# Names of arguments that go on in the next line: `a, b,` and `c: what`.
_NAMES = re.compile(r"^(    (?:\w+, )*\w+,)\n\s+(?=\w)", re.MULTILINE)


def translate(lines):
    """Lines of a docstring in reStructuredText.

    Example:

    >>> translate(["`x` is at most |b|."])
    ['``x`` is at most \\\\|b\\\\|.']
    """
    out, plain = [], []

    def flush():
        out.extend(_prose("\n".join(plain)).split("\n") if plain else [])
        plain.clear()

    fence = doctest = False
    for line in lines:
        mark = _FENCE.match(line)
        doctest = line.strip() != "" and (
            doctest or line.lstrip().startswith(">>>")
        )
        if mark and not fence:
            flush()
            fence, margin = True, mark[1]
            out += ["", f"{margin}.. code-block:: {mark[2] or 'text'}", ""]
        elif mark:
            fence = False
            out.append("")
        elif fence:
            out.append(f"   {line}" if line.strip() else "")
        elif doctest:
            flush()
            out.append(line)
        else:
            plain.append(line)
    flush()
    return out


def _prose(text):
    """`code` with two backticks; bars elsewhere escaped."""
    parts = _CODE.split(_NAMES.sub(r"\1 ", text))
    parts[0::2] = [part.replace("|", r"\|") for part in parts[0::2]]
    parts[1::2] = [f"``{' '.join(code.split())}``" for code in parts[1::2]]
    # A letter after the code, as in `Bound`s, needs an empty escape.
    parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2]]
    return "".join(parts)


def _process(app, what, name, obj, options, lines):
    lines[:] = translate(lines)


def setup(app):
    """Called by Sphinx."""
    # Before napoleon, which comes at 500.
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True}
