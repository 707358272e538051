"""Which columns of an input hold which group of attributes."""

from keras_fm.kernel import checks

GROUPS = ("present", "history", "social", "events")


def check_columns(columns):
    """Pairs of name and `(start, stop)`, in the order of `GROUPS`."""
    if not isinstance(columns, dict):
        checks.refuse("columns", columns, "a dict from group to (start, stop)")
    unknown = sorted(str(name) for name in set(columns) - set(GROUPS))
    if unknown:
        raise ValueError(
            f"The groups of `columns` must be among {GROUPS}. Received: "
            f"{unknown}"
        )
    pairs = []
    for name in GROUPS:
        given = columns.get(name)
        if given is None:
            continue
        pair = given
        if isinstance(given, slice) and given.step in (None, 1):
            pair = (given.start or 0, given.stop)
        if (
            not isinstance(pair, (tuple, list))
            or len(pair) != 2
            or not all(checks.is_integer(end) for end in pair)
            or not 0 <= pair[0] <= pair[1]
        ):
            raise ValueError(
                "A group of `columns` must be (start, stop) or a slice of "
                "step 1, with integers 0 <= start <= stop. Received: "
                f"columns[{name!r}]={given}"
            )
        if pair[0] < pair[1]:
            pairs.append((name, (int(pair[0]), int(pair[1]))))
    if not any(name == "present" for name, _ in pairs):
        raise ValueError(
            '`columns` must give the group "present" at least one column. '
            f"Received: columns={columns}"
        )
    ordered = sorted(pairs, key=lambda pair: pair[1])
    for (one, (_, stop)), (other, (start, _)) in zip(ordered, ordered[1:]):
        if start < stop:
            raise ValueError(
                "Groups of `columns` must not overlap. Received: "
                f"{one!r} and {other!r} in columns={columns}"
            )
    return tuple(pairs)


def check_within(columns, features):
    """Refuses groups that reach beyond the input."""
    if features < max(stop for _, stop in columns.values()):
        raise ValueError(
            "`columns` must lie within the input. Received: "
            f"columns={columns}, features={features}"
        )
