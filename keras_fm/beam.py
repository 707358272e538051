"""Sums the statistics of a release with Apache Beam, on many machines.

`SumStatistics` is a transform from batches of records to one
`PartialStatistics`. Its sums are integers, so the result does not depend on
how a runner splits, orders or repeats the work. The process that started the
pipeline charges the ledger and adds the noise, once:

    layer = model.get_layer("output")
    with beam.Pipeline() as pipeline:
        _ = (
            pipeline
            | batches  # of (key, (features, labels))
            | SumStatistics(layer.objective())
            | beam.Map(write, "statistics")  # where the records are
        )
    query = layer.objective()
    partial = PartialStatistics.from_bytes(read("statistics"), query)
    release = release_statistics(partial, ledger=ledger, ...)
    layer.learn(release, ledger)

Statistics without noise are as private as the records. Write them where the
records are, and delete them after the release.

Needs the extra `beam`.
"""

try:
    import apache_beam as beam
except ImportError as e:
    raise ImportError(
        "keras_fm.beam needs Apache Beam. Run `pip install apache-beam`."
    ) from e

import numpy as np

from keras_fm.kernel.partial_statistics import PartialStatistics


class SumStatistics(beam.PTransform):
    """Sums a query's statistics over all batches.

    Elements are `(key, batch)`. The key identifies the batch: if an upstream
    step was repeated and a batch occurs twice, it counts once. Two different
    batches under one key are an error. If the query is `grouped`, the key is
    the owner, an integer or text (1 and "1" are one owner), and the batch
    holds all records of this owner.

    A batch is a tuple of arrays as the query takes them, such as
    `(features, labels)`. Use batches of some hundred records.

    Args:
        query: a query of `keras_fm.queries` that is released without rounds.
        clip: whether records outside their bounds are scaled back instead of
            refused.

    Returns:
        A PCollection with one element, the bytes for
        `PartialStatistics.from_bytes`, even if there are no records.

    Raises:
        ValueError: in the pipeline, if records are outside their bounds or
            have a wrong shape. Nothing is charged then.
    """

    def __init__(self, query, clip=False):
        super().__init__()
        self.query, self.clip = query, clip

    def expand(self, batches):
        if getattr(self.query, "grouped", False):
            batches = batches | "By owner" >> beam.MapTuple(_of_owner)
        return (
            batches
            | "By key" >> beam.GroupByKey()
            | "Once" >> beam.MapTuple(_once)
            | "Sum" >> beam.CombineGlobally(_Sum(self.query, self.clip))
        )


def _of_owner(key, batch):
    """A batch under its owner's key, which is the same for 1 and "1"."""
    kind = np.asarray(key).dtype.kind
    if kind not in "biuU" or np.ndim(key):
        raise ValueError(
            "With owners, the key of a batch must be its owner's id: a whole "
            "number or text. Give each person exactly one id, or that "
            "person's influence is not limited. Received: a key of type "
            f"{type(key).__name__}"
        )
    return key if kind == "U" else str(int(key)), batch


def _once(key, batches):
    batches = iter(batches)
    first = next(batches)
    for other in batches:
        if len(other) != len(first) or not all(
            np.array_equal(a, b) for a, b in zip(first, other)
        ):
            raise ValueError(
                "Two different batches have the same key. Give every batch a "
                "key of its own. For a grouped query, put all records of an "
                "owner into one batch."
            )
    return key, first


class _Sum(beam.CombineFn):
    """Combines batches into the bytes of their statistics."""

    def __init__(self, query, clip):
        super().__init__()
        self._query, self._clip = query, clip

    def create_accumulator(self):
        return PartialStatistics(self._query, self._clip)

    def add_input(self, partial, element):
        key, batch = element
        owners = None
        if getattr(self._query, "grouped", False):
            owners = [key] * self._query.num_records(*batch)
        partial.add(*batch, owners=owners)
        return partial

    def merge_accumulators(self, partials):
        partials = iter(partials)
        whole = next(partials)
        for partial in partials:
            whole.merge(partial)
        return whole

    def extract_output(self, partial):
        return partial.to_bytes()

    def get_accumulator_coder(self):
        return _Coder(self._query, self._clip)


class _Coder(beam.coders.Coder):
    """Encodes statistics that are sent from one worker to another."""

    def __init__(self, query, clip):
        self._query, self._clip = query, clip

    def encode(self, partial):
        return partial.to_bytes()

    def decode(self, encoded):
        return PartialStatistics.from_bytes(encoded, self._query, self._clip)

    def is_deterministic(self):
        return False
