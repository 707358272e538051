"""A release: statistics with their noise, which are public from then on."""

import dataclasses
import json
from typing import Any

import numpy as np

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel.ledger import known_mechanisms, stored_arrays, strict_json
from keras_fm.kernel.noise_mechanisms import Mechanism

_LARGEST_PUBLIC = 1_000_000


# The `Release` class of each class of queries.
RELEASES: dict[type, type] = {}


def released_as(query):
    """A decorator for the `Release` of a class of queries. Files of it hold
    the name of that class."""

    def register(release):
        RELEASES[query] = release
        return release

    return register


def query_of_kind(kind):
    """The class of queries that a file names. `keras_fm.Release` knows the
    package's own classes, a module of the kernel only the imported ones.

    Raises:
        KeyError: if no class of that name has a release.
    """
    return {known.__name__: known for known in RELEASES}[kind]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Release:
    """Noisy sums over records. You may publish them and train on them.

    Attributes:
        statistics: dict of arrays by the query's names, noise added.
        query, mechanism, neighbours: how they were made.
        private: `False` if the noise was reproducible.

    Example:

    ```python
    release = private.releases["private_dense"]
    release.save("release.npz")
    layer.learn(Release.load("release.npz"), ledger)
    ```
    """

    statistics: dict
    query: Any
    mechanism: Mechanism
    neighbours: str
    private: bool

    def __repr__(self):
        sizes = ", ".join(
            f"{name} {array.shape}" for name, array in self.statistics.items()
        )
        return (
            f"<{type(self).__name__} of {sizes}, "
            f"{type(self.mechanism).__name__}, {self.neighbours}>"
        )

    def vector(self):
        """The statistics as the vector that the noise was added to, or
        `None` if they come from several such vectors.

        Every coordinate has noise of variance
        `mechanism.coordinate_variance(query.size)`.
        """
        arrays = tuple(self.statistics.values())
        return self.query.pack(arrays, self.mechanism.norm)

    def save(self, path):
        """Writes the release as `.npz`. The file holds no noise and no raw
        statistic, only their sum."""
        public = {
            "kind": type(self.query).__name__,
            "query": self.query.config(),
            "mechanism": self.mechanism.config(),
            "neighbours": self.neighbours,
            "private": self.private,
        }
        # Through a file: given a name, NumPy may append to it.
        with open(path, "wb") as f:
            np.savez_compressed(
                f,
                **self.statistics,
                public=np.frombuffer(json.dumps(public).encode(), np.uint8),
            )

    @staticmethod
    def load(path):
        """Loads what `save` wrote; executes no code from the file.

        Returns:
            A `Release` of the kind that was saved.

        Raises:
            ValueError: if the file is not a release.
        """
        try:
            with stored_arrays.opened(path) as data:
                public = data.read("public")
                if public.dtype != np.uint8 or public.size > _LARGEST_PUBLIC:
                    raise ValueError("it does not name its query")
                public = json.loads(bytes(public))
                mechanism = known_mechanisms.from_config(public["mechanism"])
                query = query_of_kind(public["kind"])(**public["query"])
                # Shapes are compared before anything of their size is made.
                arrays = [
                    data.read(name, shape).astype(np.float64)
                    for name, shape in zip(query.names, query.shapes)
                ]
                if not all(np.isfinite(array).all() for array in arrays):
                    raise ValueError("it holds numbers that are not finite")
                if not isinstance(public["private"], bool):
                    raise ValueError("`private` must be true or false")
                return RELEASES[type(query)](
                    statistics=dict(zip(query.names, arrays)),
                    query=query,
                    mechanism=mechanism,
                    neighbours=str(
                        budget_lib.Neighbours.of(public["neighbours"])
                    ),
                    private=public["private"],
                )
        except strict_json.MALFORMED as e:
            raise ValueError(f"This is not a keras_fm release: {e}") from e
