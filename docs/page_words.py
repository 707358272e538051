"""Lists the pages without proofs: words, sentences, words of a sentence.

    python docs/page_words.py
    python docs/page_words.py v0.1.0    # of another revision of this repository

A link counts as its text, code within a line as one word. Tables, headings
and code in fences are no sentences, but count as words of a page.
"""

import pathlib
import re
import subprocess
import sys

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


def pages(revision=None):
    """Texts of the pages by path: of the files here, or of a git revision."""
    root = _DOCS.parent
    if revision is None:
        return {p.relative_to(root): p.read_text("utf-8") for p in PAGES}
    git = ["git", "-C", str(root)]
    found = [
        *git,
        "ls-tree",
        "-r",
        "--name-only",
        revision,
        "README.md",
        "docs",
    ]
    listed = subprocess.run(found, check=True, capture_output=True, text=True)
    return {
        path: subprocess.run(
            [*git, "show", f"{revision}:{path}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for path in map(pathlib.PurePath, listed.stdout.splitlines())
        if path.suffix == ".md" and "proofs" not in path.parts
    }


def main(arguments):
    total = 0
    for path, text in pages(*arguments).items():
        found = sentences(text)
        mean = sum(found) / max(1, len(found))
        words = len(text.split())
        total += words * (path.name != "README.md" or len(path.parts) > 1)
        print(f"{path.as_posix():42} {words:6,} {len(found):5} {mean:6.1f}")
    print(f"words without README.md: {total:,}")


if __name__ == "__main__":
    main(sys.argv[1:])
