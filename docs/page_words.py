"""Lists the pages without proofs: words, sentences, words of a sentence.

    python docs/page_words.py

A link counts as its text, code within a line as one word. Tables, headings
and code in fences are no sentences, but count as words of a page.
"""

import pathlib
import re

_DOCS = pathlib.Path(__file__).resolve().parent
PAGES = [
    _DOCS.parent / "README.md",
    *(p for p in sorted(_DOCS.rglob("*.md")) if "proofs" not in p.parts),
]
# What is no sentence, and what stands for a word.
_LEFT_OUT = [
    (r"(?ms)^( *)```.*?^\1```\s*$", ""),
    (r"(?m)^(?: *\||#|    ).*$", ""),
    (r"(?s)!\[[^\]]*\]\([^)]*\)|<!--.*?-->", ""),
    (r"\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"`[^`]*`", "x"),
]
_BLOCK = re.compile(r"\n\s*\n|^ *(?:[*-]|\d+\.) ", re.M)
_END = re.compile(r"(?<=[.?!:])[\"*_)]*\s+(?=[\"*_(]*[A-Z0-9x])")


def sentences(text):
    """How many words each sentence of a page has."""
    for pattern, kept in _LEFT_OUT:
        text = re.sub(pattern, kept, text)
    found = (s for block in _BLOCK.split(text) for s in _END.split(block))
    return [n for s in found if (n := len(s.split())) > 1]


def main():
    for path in PAGES:
        text = path.read_text("utf-8")
        found = sentences(text)
        mean = sum(found) / max(1, len(found))
        name = path.relative_to(_DOCS.parent).as_posix()
        print(f"{name:36} {len(text.split()):6,} {len(found):5} {mean:6.1f}")


if __name__ == "__main__":
    main()
