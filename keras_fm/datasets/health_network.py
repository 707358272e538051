"""A health social network, and windows of it to predict behaviour.

The schema is that of the dPA paper's behaviour prediction (Phan et al., AAAI
2016): attributes of every user at every step, a friendship graph, influence
probabilities on it and public events. The network that
`datasets.load("health_network")` returns is synthetic; you make your own from
arrays.
"""

import dataclasses
import math

import numpy as np

from keras_fm.datasets.behavior_windows import Windows
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks

__all__ = ["HealthNetwork"]

# Public psi of friendships without a given probability: every friend counts in
# full.
_DEFAULT_INFLUENCE = 1.0

_SOCIAL = ("none", "public", "friends")
_TARGETS = ("increase", "active")


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HealthNetwork:
    """Users, their attributes at every step, and their friendships.

    Attributes are private. Everything else that `windows` uses counts as
    public: bounds, friendships, influence, events, the numbers of users and
    steps.

    Attributes:
        attributes: float32 `(users, steps, A)`.
        attribute_names: tuple of A names.
        groups: dict, name of a group to a tuple of attribute names; every
            attribute is in one group.
        bounds: float64 `(A, 2)`, lowest and highest value of each
            attribute: public constants, never computed from the data. `windows`
            clips values outside.
        activity: name of the attribute that measures behaviour.
        active_threshold: float, public; a user with more activity is active.
        resolution: name of a step: `"daily"`, `"weekly"` or another.
        friendships: int64 `(E, 2)`, undirected, each once.
        synthetic: bool, whether a simulator made the network.
        influence: float32 `(steps, 2E)` or `(2E,)` if it does not change:
            psi_t(v, u) in [0, 1], the probability that v influences u, on
            the rows of `directed_friendships`. Public input. `None` is
            1 everywhere: every friend counts in full.
        events: float32 `(steps, K)` in [0, 1], public environmental events;
            `None` is none.
        event_names: tuple of K names.

    Raises:
        ValueError: if shapes disagree, a value is not finite, or a
            probability or event is outside [0, 1].

    Example:

    >>> network = datasets.load("health_network")
    >>> network
    <HealthNetwork synthetic daily: 254 users, 300 steps, 30 attributes, ...>
    >>> train, test = network.windows(history=3).split(train=0.8)

    Source: the schema and the social term follow Phan, Wang, Wu and Dou,
    *Differential Privacy Preservation for Deep Auto-Encoders: an Application
    of Human Behavior Prediction*, AAAI 2016.
    """

    attributes: np.ndarray
    attribute_names: tuple
    groups: dict
    bounds: np.ndarray
    activity: str
    active_threshold: float
    resolution: str
    friendships: np.ndarray
    synthetic: bool
    influence: np.ndarray | None = None
    events: np.ndarray | None = None
    event_names: tuple = ()

    def __post_init__(self):
        def put(name, value, *shape, dtype=np.float32):
            # A copy, so that checked values cannot change.
            value = np.array(value, dtype)
            checks.shape(f"`{name}`", value.shape, *shape)
            checks.finite(name, value)
            value.setflags(write=False)
            object.__setattr__(self, name, value)
            return value

        names = tuple(self.attribute_names)
        object.__setattr__(self, "attribute_names", names)
        object.__setattr__(self, "event_names", tuple(self.event_names))
        put("attributes", self.attributes, "users", "steps", len(names))
        bounds = put("bounds", self.bounds, len(names), 2, dtype=np.float64)
        bounds_lib.check_bounds(bounds[:, 0], bounds[:, 1])
        checks.one_of("activity", self.activity, names)
        pairs = put("friendships", self.friendships, "pairs", 2, dtype=np.int64)
        if pairs.size and not 0 <= pairs.min() <= pairs.max() < self.users:
            raise ValueError(
                f"`friendships` must name users 0 to {self.users - 1}."
            )
        edges, influence = 2 * len(pairs), self.influence
        if influence is None:
            influence = np.full(edges, _DEFAULT_INFLUENCE)
        shape = (self.steps, edges)[2 - np.ndim(influence) :]
        influence = put("influence", influence, *shape)
        events = self.events
        if events is None:
            events = np.zeros((self.steps, 0))
        events = put("events", events, self.steps, len(self.event_names))
        for name, values in (("influence", influence), ("events", events)):
            if not ((values >= 0) & (values <= 1)).all():
                raise ValueError(f"`{name}` must be in [0, 1].")

    def __repr__(self):
        made = "synthetic " if self.synthetic else ""
        return (
            f"<HealthNetwork {made}{self.resolution}: {self.users} users, "
            f"{self.steps} steps, {len(self.attribute_names)} attributes, "
            f"{len(self.friendships)} friendships>"
        )

    @property
    def users(self):
        """The number of users."""
        return self.attributes.shape[0]

    @property
    def steps(self):
        """The number of steps."""
        return self.attributes.shape[1]

    @property
    def directed_friendships(self):
        """int64 `(2E, 2)`: source v and target u of every psi(v, u).

        Row e is friendship e as listed, row E + e the same reversed.
        """
        return np.concatenate([self.friendships, self.friendships[:, ::-1]])

    def windows(
        self,
        history=3,
        target="increase",
        social="public",
        max_friends=None,
        stride=1,
    ):
        """Makes rows of features with labels of the next step's behaviour.

        Row (u, t) holds, clipped to the public bounds: the attributes of u
        at t ("present"), at t-1, ..., t-history ("history"), one social
        number at t ("social") and the public events of t+1 ("events").
        Only the public events are later than t. The label depends on the
        activity at t and t+1. Rows are ordered by step, then by user.

        Args:
            history: int >= 0, the steps before t.
            target: `"increase"`: the activity at t+1 exceeds that at t;
                `"active"`: it exceeds `active_threshold`.
            social: how the social number of row (u, t) is made, with F_u
                the friends of u:

                * `"none"`: it is left out.
                * `"public"`: 1/|F_u| sum of psi_t(v, u), the paper's term.
                  psi is a public input: no other user's attributes enter.
                * `"friends"`: 1/|F_u| sum of psi_t(v, u) times v's activity
                  at t, scaled by its public bounds to [0, 1]. Other users'
                  attributes enter.
            max_friends: int, required by (and only for) `"friends"`:
                `counted_friendships` then shortens F_u, so that a user counts
                at most this many friends and is counted by at most this many.
            stride: int, steps between the windows of a user.

        Returns:
            `Windows`, with `x` of shape `(n, A (history + 1) + 1 + K)` (one
            less without the social number).

        Raises:
            ValueError: if an argument is not as above or the network has
                fewer than `history + 2` steps.
        """
        checks.one_of("target", target, _TARGETS)
        checks.one_of("social", social, _SOCIAL)
        history = checks.integer("history", history, at_least=0)
        stride = checks.count("stride", stride)
        if social == "friends":
            if max_friends is None:
                raise ValueError(
                    'social="friends" uses other users\' attributes: set '
                    "`max_friends`, the largest number of other users whose "
                    "rows one user's data may enter."
                )
            max_friends = checks.count("max_friends", max_friends)
        elif max_friends is not None:
            raise ValueError(
                '`max_friends` is for social="friends". '
                f"Received: social={social!r}, max_friends={max_friends}"
            )
        if self.steps < history + 2:
            raise ValueError(
                f"history={history} needs {history + 2} steps. The network "
                f"has {self.steps}"
            )
        t = np.arange(history, self.steps - 1, stride)
        low, high = self.bounds.T.astype(np.float32)
        values = np.clip(self.attributes, low, high).swapaxes(0, 1)
        parts = {
            "present": [values[t]],
            "history": [values[t - k] for k in range(1, history + 1)],
            "social": [],
            "events": [],
        }
        if social != "none":
            column = self._social(values, t, social, max_friends)
            parts["social"].append(column[..., None])
        events = self.events[t + 1][:, None]
        shape = (len(t), self.users, len(self.event_names))
        parts["events"].append(np.broadcast_to(events, shape))

        past = ["t", *(f"t-{k}" for k in range(1, history + 1))]
        names = [f"{a}[{at}]" for at in past for a in self.attribute_names]
        names += ["social[t]"] * len(parts["social"])
        names += [f"{event}[t+1]" for event in self.event_names]
        columns, start = {}, 0
        for name, arrays in parts.items():
            width = sum(a.shape[-1] for a in arrays)
            columns[name] = slice(start, start + width)
            start += width
        # Psi and events are in [0, 1] by definition.
        others = start - len(low) * (history + 1)
        low = np.concatenate([np.tile(low, history + 1), np.zeros(others)])
        high = np.concatenate([np.tile(high, history + 1), np.ones(others)])

        activity = values[..., self.attribute_names.index(self.activity)]
        if target == "increase":
            y = activity[t + 1] > activity[t]
        else:
            y = activity[t + 1] > self.active_threshold
        x = np.concatenate([a for p in parts.values() for a in p], axis=-1)
        rows = math.ceil((history + 2) / stride)
        return Windows(
            x=x.reshape(-1, start),
            y=y.reshape(-1).astype(np.int64),
            users=np.tile(np.arange(self.users), len(t)),
            steps=np.repeat(t, self.users),
            names=tuple(names),
            columns=columns,
            low=low.astype(np.float32),
            high=high.astype(np.float32),
            reach=max_friends or 0,
            note=_note(social, max_friends, rows),
        )

    def _social(self, values, t, social, max_friends):
        """`(len(t), users)` float32: the social number of every row."""
        edges = 2 * len(self.friendships)
        psi = np.broadcast_to(self.influence, (self.steps, edges))
        source, target = self.directed_friendships.T
        weight = np.ones((self.steps, self.users))
        if social == "friends":
            keep = counted_friendships(
                self.friendships, self.users, max_friends
            )
            keep = np.concatenate([keep, keep])
            psi, source, target = psi[:, keep], source[keep], target[keep]
            column = self.attribute_names.index(self.activity)
            low, high = self.bounds[column]
            weight = (values[..., column] - low) / (high - low)
        friends = np.bincount(target, minlength=self.users)
        sums = [
            np.bincount(
                target, psi[s] * weight[s, source], minlength=self.users
            )
            for s in t
        ]
        mean = np.stack(sums) / np.maximum(friends, 1)
        return np.clip(mean, 0, 1).astype(np.float32)


def counted_friendships(friendships, users, max_friends):
    """Chooses friendships so that nobody has more than `max_friends`.

    A fixed rule on the public graph: friendships are sorted by the total number
    of friends of the two users, then by the two ids. One after the other is
    kept if both users have room. A kept friendship counts both ways, so a user
    counts at most `max_friends` friends and is counted by at most as many.

    Args:
        friendships: int `(E, 2)`.
        users: int, number of users.
        max_friends: positive int.

    Returns:
        bool `(E,)`, whether each is kept.
    """
    max_friends = checks.count("max_friends", max_friends)
    ends = np.sort(np.asarray(friendships).reshape(-1, 2), axis=1)
    degree = np.bincount(ends.ravel(), minlength=users)
    order = np.lexsort((ends[:, 1], ends[:, 0], degree[ends].sum(axis=1)))
    room = [max_friends] * users
    keep = np.zeros(len(ends), bool)
    for e in order:
        a, b = ends[e]
        if room[a] and room[b]:
            room[a] -= 1
            room[b] -= 1
            keep[e] = True
    return keep


def _note(social, max_friends, rows):
    if social == "friends":
        others = (
            f"The social column uses the activity of up to {max_friends} "
            "friends at the row's step: by a public rule on the friendship "
            "graph, one user's attributes enter the rows of at most "
            f"{max_friends} other users."
        )
    elif social == "public":
        others = (
            "The social column is a mean of influence probabilities, which "
            "are taken as public input: no row uses another user's attributes."
        )
    else:
        others = "No row uses another user's attributes."
    return (
        f"{others} A user's value at one step is in up to {rows} rows of "
        "that user. Friendships, influence, events, bounds and the numbers "
        "of users and steps are taken as public; an attribute that counts "
        "messages or competitions belongs to the user of that row only."
    )
