"""Checks what is in the wheel and the sdist; prints the oldest versions.

    python .ci/package_contents.py DIST SOURCE

What is printed is a constraints file: `keras==3.5` for `keras>=3.5`.
"""

import email
import pathlib
import re
import sys
import tarfile
import zipfile


def check(dist, source):
    """Checks both files of `dist` against the tree `source`.

    Returns:
        list of str: `name==version`, the oldest of every requirement.
    """
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode("utf-8")
    info = metadata.removesuffix("METADATA")
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "keras_fm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    # Templates, facts and py.typed are files of the tree like any other.
    found = {name for name in names if not name.startswith(info)}
    _same("the wheel", found, expected)
    if info + "licenses/LICENSE" not in names and info + "LICENSE" not in names:
        sys.exit("the wheel lacks the LICENSE")
    with tarfile.open(sdist) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    found = {n for n in names if n.startswith(_NOT_SHIPPED)}
    _same("the sdist", names & expected | found, expected)
    lines = email.message_from_string(text).get_all("Requires-Dist")
    return list(_oldest(lines))


_NOT_SHIPPED = ("tests/", "docs/", "benchmarks/", "examples/", ".ci/")


def _same(what, found, expected):
    for word, names in (
        ("lacks", expected - found),
        ("has too many", found - expected),
    ):
        if names:
            sys.exit(f"{what} {word}: {', '.join(sorted(names))}")


def _oldest(requirements):
    """The bounds of what everybody installs; markers are pip's affair."""
    for line in requirements:
        match = re.match(r"([\w.-]+)>=([\w.]+)", line)
        if match and "extra ==" not in line:
            yield f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    for line in check(*map(pathlib.Path, sys.argv[1:3])):
        print(line)
