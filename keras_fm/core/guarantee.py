"""Settings of a private fit: `Proven`, `Published` and the privacy `Unit`."""

import dataclasses
import functools
import math
import typing

import numpy as np

from keras_fm.core import several_owners
from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns
from keras_fm.kernel.ledger.ledger_text import (
    DECLARED,
    ONE_OWNER,
    ONE_RECORD,
    SEVERAL,
    checked_unit,
)

ORDERS = ("linear", "quadratic")
STARTS = ("minimiser", "current")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """Whose data are protected: one record, or one owner of several records.

    A record is a row of the data; an owner, such as a person, has several.

    Args:
        owners: `None` (each row is a unit), or `(n,)` ids of the records'
            owners, whole numbers or text. Then the unit is an owner with all
            its records, whose sum is scaled back to what one record may add.
            The data must be arrays. `make_private` also takes `(n, k)` ids
            of rows with up to k owners, filled up with -1, or text with "";
            see `chosen`.
        reach: how many *other* units have records that may depend on one
            unit's data (for example, features about friends). The
            sensitivity grows with it. Who may enter whose records is public.
        words: `None`, or your description of the row or owner. Nothing
            proves it, so every statement puts *by declaration* before it.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> Unit(words="one patient").name
    'one record (one row of the data given), by declaration one patient'
    """

    owners: typing.Any = None
    reach: int = 0
    words: str | None = None

    def __post_init__(self):
        if self.owners is not None:
            ids = np.array(columns.owner_ids(self.owners))
            if ids.ndim not in (1, 2):
                raise ValueError(
                    "`owners` must hold one id for each row, or k ids, "
                    f"`(n, k)`. Received: owners.shape={ids.shape}"
                )
            object.__setattr__(self, "owners", ids)
        checks.fields(self, reach=checks.natural)
        if self.words is not None:
            checked_unit(self.words)

    def __repr__(self):
        kind = "rows" if self.owners is None else "owners"
        return f"Unit({kind}, reach={self.reach})"

    @property
    def name(self):
        """The unit in words: what is proved for it, and the declaration."""
        if self.words is None:
            return self.proved
        return f"{self.proved}{DECLARED}{self.words}"

    @property
    def proved(self):
        """The unit that releases are proved for, whatever the words say."""
        return (ONE_RECORD, ONE_OWNER, SEVERAL)[np.ndim(self.owners)]

    @functools.cached_property
    def chosen(self):
        """`None`, or, if rows have several owners, the numbers of the rows
        that are used: at most one row of each owner."""
        if np.ndim(self.owners) < 2:
            return None
        return several_owners.chosen_rows(self.owners)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proven:
    """Settings of a fit in which every use of the records has a proof.

    Args:
        neighbours: `"add_remove"` (one record more or less), `"replace_one"`
            (one record differs) or `"replace_label"` (only the labels are
            secret, features are public). `None`: the relation of the ledger
            that is continued, else the first.
        unit: the privacy unit, a `Unit`.
        shares: `None` (defaults, see `PrivateModel.plan`), or the share of
            the budget that each release (noisy sum over the records) gets,
            in the order of the plan: greater than 0, summing to 1.
        releases: int >= 1, how many times a model may be released within the
            budget. Each time gets an equal share.
        spends: float in (0, 1], the share of the ledger's budget for all
            these releases together. The rest is left for private evaluation
            (`keras_fm.evaluation`), see `PrivacyBudget.split`.
        n_public: whether the number of records is public. If `False`, pass
            `fit` a `steps_per_epoch` and an x of as many batches, so that
            the number of steps does not reveal n.
        start: `"minimiser"` moves the output layer to the released optimum in
            closed form before the first step. `"current"` keeps the weights,
            which must be those that the layer was built with.
        ridge_factor: float >= 0, the ridge as a multiple of the noise's
            spectral edge (the largest eigenvalue of noise). Fix it in advance.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> Proven(neighbours="replace_one").releases
    1
    """

    neighbours: str | None = None
    unit: Unit = dataclasses.field(default_factory=Unit)
    shares: tuple | None = None
    releases: int = 1
    spends: float = 1.0
    n_public: bool = True
    start: str = "minimiser"
    ridge_factor: float = 0.5

    kind = "proven"
    own_neighbours = "add_remove"

    def __post_init__(self):
        if self.neighbours is not None:
            budget_lib.Neighbours.of(self.neighbours)
        checks.instance("unit", self.unit, Unit, "a keras_fm.Unit")
        object.__setattr__(self, "shares", check_shares(self.shares))
        checks.either("start", self.start, STARTS)
        checks.fields(
            self,
            releases=checks.count,
            ridge_factor=checks.nonnegative,
            spends=functools.partial(checks.number, above=0, at_most=1),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """Settings that one paper's published form needs beside its layers."""

    def get_config(self):
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """The papers' algorithms as printed. Their epsilon is *claimed*: the
    papers assert it, and this library does not prove it.

    Args:
        lot: the divisor of the noise: the batch size of `fit` (the lot
            size |L| of AdLM and pCDBN), or `"data"`, the number of records in
            `data`, which then is public (dPA, FunctionalNet).
        neighbours: `"replace_one"` or `"add_remove"`. `None`: the relation of
            the ledger that is continued, else the first (the papers').
        shares: `None` (defaults), or the share of the budget that each
            perturbation gets, in the order of the plan. Defaults: AdLM's
            relevance (eps1), first layer (eps2) and loss (eps3) get
            (0.25, 0.25, 0.5); all others get equal shares.
        orders: which coefficients of the loss are perturbed, as printed
            `("linear", "quadratic")`.
        settings: what one paper's published form needs, such as
            `keras_fm.models.PublishedAdLM(relevance_of=twin)`. `None`: the
            model's own settings, or else the paper's.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> Published(lot=50).orders
    ('linear', 'quadratic')
    """

    lot: int | str
    neighbours: str | None = None
    shares: tuple | None = None
    orders: tuple = ORDERS
    settings: PaperSettings | None = None

    kind = "published"
    own_neighbours = "replace_one"
    # As `Proven` has them, which alone may change them.
    unit, n_public, ridge_factor = Unit(), True, 0.5
    releases, spends, start = 1, 1.0, "minimiser"

    def __post_init__(self):
        if self.neighbours is not None:
            budget_lib.Neighbours.of(self.neighbours)
        by_batch = checks.is_integer(self.lot) and self.lot > 0
        if self.lot != "data" and not by_batch:
            raise ValueError(
                'guarantee="published" divides its noise by the lot size: '
                'pass the `batch_size` of fit as `lot` (or `lot="data"` for '
                f"the number of records). Received: lot={self.lot!r}"
            )
        object.__setattr__(self, "shares", check_shares(self.shares))
        orders = self.orders
        orders = (orders,) if isinstance(orders, str) else tuple(orders)
        if set(orders) - set(ORDERS) or not orders:
            raise ValueError(
                f"`orders` must name some of {ORDERS}. "
                f"Received: orders={orders}"
            )
        object.__setattr__(self, "orders", orders)
        if self.settings is not None:
            checks.instance(
                "settings",
                self.settings,
                PaperSettings,
                "those of a paper, such as keras_fm.models.PublishedAdLM()",
            )

    def settings_of(self, model, kind):
        """The settings of class `kind` for a model.

        Args:
            model: the whole model, which may have settings of its own.
            kind: class of the settings.
        """
        own = getattr(model, "published_settings", None)
        for found in (self.settings, own):
            if isinstance(found, kind):
                return found
        return kind()


def promise_of(guarantee):
    """The `Proven` or `Published` of an argument of `PrivateModel`.

    Raises:
        ValueError: saying what to write.
    """
    if isinstance(guarantee, (Proven, Published)):
        return guarantee
    if isinstance(guarantee, str) and guarantee == "proven":
        return Proven()
    if isinstance(guarantee, str) and guarantee == "published":
        raise ValueError(
            'guarantee="published" divides its noise by the lot size: write '
            "`guarantee=keras_fm.Published(lot=...)` with the `batch_size` of "
            'fit. Received: guarantee="published"'
        )
    # The value is not shown: it may be labels.
    raise ValueError(
        '`guarantee` must be "proven", keras_fm.Proven(...) or '
        "keras_fm.Published(...). Received: guarantee of type "
        f"{type(guarantee).__name__}"
    )


def check_shares(shares):
    """Shares as a tuple of floats, or `None`.

    Raises:
        ValueError: if one is not a number above 0, or they do not sum to 1.
    """
    if shares is None:
        return None
    if np.ndim(shares) != 1 or isinstance(shares, dict):
        checks.refuse("shares", shares, "a tuple of numbers that sum to 1")
    shares = tuple(budget_lib.as_float("shares", share) for share in shares)
    if not all(share > 0 for share in shares) or not (
        abs(math.fsum(shares) - 1) < 1e-9
    ):
        checks.refuse("shares", shares, "greater than 0 and sum to 1")
    return shares
