"""A simulator of a health social network: synthetic data, no real person.

It has the schema and the sizes of the network of the dPA paper (Phan et al.,
AAAI 2016), which is not public: 254 users, 30 attributes, 300 days or 48
weeks, 1,383 friendships, 2,766 messages, 11,458 competitions. Everything
follows from the seed and the equations below; no parameter was fitted to
anybody's records.

Names are fields of `SimulatorParameters`, but for one letter each: e is
standard normal and new each time, s(z) = 1/(1 + exp(-z)), and AR(m) is a
stationary process of deviation 1 with correlation m from one day to the next.

```
Graph
    A user has traits p = c + community_spread e, where c ~ N(0, I) in two
    dimensions is the centre of one of the communities, and log sociability
    o = sociability e. Friendships are a weighted draw without replacement:
    (u, v) has log weight o_u + o_v - |p_u - p_v|^2 / (2 homophily^2).
    Everybody's best draw comes first, so nobody is alone.
Events (public)
    Step 0 is a Monday and day first_day of the year.
    weekend; holiday: one of holidays; campaign: on and off at random, on for
    campaign_days on average and on campaign_share of the days
    warm_season  = 1/2 - cos(2 pi (date - 15)/365)/2
    fair_weather = s(weather_spread AR(weather_memory)), of t+1 as forecast
Influence (public), c the community of u
    psi_t(v, u) = s(influence_level + closeness e_vu
        + challenge AR_c(challenge_memory)
        + visibility AR_v(visibility_memory))
Activity on day t: motivation m, long-run motivation b, activity a = s(z),
excess x = z - m
    z_t = m_t + E_t + w (weekend_t - 2/7) + contagion P_t
          + competition min(Q_{t-1}, competition_most)
          + spell AR_u(spell_memory)
          - fatigue D_{t-1} + habit x_{t-3} + activity_noise e
    E_t = effects of the other events (holiday, campaign, warm_season,
          fair_weather), each less its mean over the run
    w   = weekend + weekend_spread e                           (one per user)
    P_t = 1/|F_u| sum_v psi_{t-1}(v, u) (presence + (1 - presence) a_{v,t-1})
          - s(influence_level) (1 + presence)/2                (P_0 = 0)
    D_t = fatigue_memory D_{t-1} + x_t
    b   = motivation_level + motivation_trait p_1 + motivation_spread e
    m_0 = b + motivation_start e
    m_{t+1} = m_t + motivation_return (b - m_t) + motivation_contagion P_{t+1}
          + motivation_message (messages received on day t)
          + motivation_noise e
    Q_t counts the competitions of day t.
Attributes of behaviour
    Steps are 16,000 a. Distance is steps times a stride of
    stride + stride_spread e metres, times 1 + distance_noise e.
    A day is an exercising day with probability s(exercise z). Its goal is
    achieved if a exceeds goal times fitness.
Biomarkers
    Fitness f starts at s(b) and follows a: f += fitness_return (a - f).
    BMI follows B - bmi_activity f by bmi_return a day, plus bmi_noise e,
    where B = bmi_level + bmi_spread e.
    Wellness is 100 s(wellness_fitness (f - 1/2) - wellness_bmi (BMI - 27)
    + wellness_noise e).
    The pulse is pulse_level + pulse_spread e_u - pulse_fitness f
    + pulse_noise e.
Messages and competitions
    Their exact total is spread over the days at random; a day of a campaign
    counts twice. A message goes from v to its friend u with weight
    psi_t(v, u) exp(message_motivation m_v). A sender who is more active than
    the receiver by more than support_gap writes about a topic of support.
    Competitions of a day are a weighted draw of different friendships with
    log weight competition_motivation (m_u + m_v).
```
"""

import dataclasses

import numpy as np

from keras_fm.datasets.health_network import HealthNetwork
from keras_fm.datasets.simulator_parameters import SimulatorParameters
from keras_fm.kernel import checks

__all__ = ["simulate"]

_WEEK = 7
_YEAR = 365
_USERS = 254
_FRIENDSHIPS = 1383
_MESSAGES = 2766
_COMPETITIONS = 11458
_STEPS = {"daily": 300, "weekly": 48}

# Name, how a week is made of its days, bounds by day, bounds by week.
_BEHAVIOURS = (
    ("competitions_joined", "sum", (0, 5), (0, 20)),
    ("exercising_days", "sum", (0, 1), (0, 7)),
    ("goals_achieved", "sum", (0, 1), (0, 7)),
    ("average_steps", "mean", (0, 16000), (0, 16000)),
    ("average_distance", "mean", (0, 16), (0, 16)),
)
_BIOMARKERS = (
    ("bmi", "last", (15, 45), (15, 45)),
    ("bmi_slope", "last", (-1, 1), (-1, 1)),
    ("wellness_score", "last", (0, 100), (0, 100)),
    ("wellness_slope", "last", (-30, 30), (-30, 30)),
    ("resting_heart_rate", "last", (40, 100), (40, 100)),
)
# Topic and its share of the messages, in parts.
_TOPICS = (
    ("encouragement", 16),
    ("fitness", 12),
    ("followup", 8),
    ("competition", 14),
    ("games", 5),
    ("personal", 8),
    ("study_protocol", 3),
    ("progress_report", 5),
    ("technique", 3),
    ("social_network", 4),
    ("meetups", 4),
    ("goal", 5),
    ("wellness_meter", 2),
    ("feedback", 3),
    ("heckling", 3),
    ("explanation", 2),
    ("invitation", 4),
    ("notice", 3),
    ("technical_fitness", 2),
    ("physical", 4),
)
# Topics that a more active user writes to a less active one.
_SUPPORT = ("encouragement", "followup", "goal", "feedback", "invitation")
_COUNTS = tuple(
    (f"messages_{topic}", "sum", (0, 2), (0, 4)) for topic, _ in _TOPICS
)
_ATTRIBUTES = _BEHAVIOURS + _COUNTS + _BIOMARKERS
_GROUPS = {
    "behaviours": tuple(a[0] for a in _BEHAVIOURS),
    "social_communications": tuple(a[0] for a in _COUNTS),
    "biomarkers": tuple(a[0] for a in _BIOMARKERS),
}
_MOST_STEPS = 16000
_ACTIVE = 8000
_EVENTS = ("weekend", "holiday", "campaign", "warm_season", "fair_weather")


def simulate(
    resolution="daily", seed=0, users=_USERS, steps=None, parameters=None
):
    """Simulates a synthetic health social network.

    Users have a motivation that drifts slowly. A day's activity follows
    motivation, the weekly rhythm, public events, the visible activity of
    friends, competitions and the fatigue of the day before. Motivated users
    start messages and competitions; biomarkers follow activity. Days are
    simulated in order.

    Args:
        resolution: `"daily"`, or `"weekly"`: sums seven simulated days to a
            week. Behaviours and messages are counted, steps and distance
            averaged, biomarkers taken from the last day.
        seed: int, seed of the NumPy generator.
        users: int >= 2; the numbers of friendships, messages and competitions
            are proportional to it.
        steps: int, days or weeks; `None` is 300 or 48.
        parameters: `SimulatorParameters`; `None` is the defaults.

    Returns:
        `HealthNetwork` with `synthetic=True`.

    Example:

    >>> simulate(seed=1)
    <HealthNetwork synthetic daily: 254 users, 300 steps, 30 attributes, ...>
    """
    checks.either("resolution", resolution, _STEPS)
    p = SimulatorParameters() if parameters is None else parameters
    usual = _STEPS[resolution]
    steps = checks.count("steps", usual if steps is None else steps)
    users = checks.integer("users", users, at_least=2)
    pairs = users * (users - 1) // 2
    friendships = round(_FRIENDSHIPS * users / _USERS)
    friendships = min(max(friendships, users), pairs)
    days = steps * (_WEEK if resolution == "weekly" else 1)
    size = users * steps / (_USERS * usual)
    messages = round(_MESSAGES * size)
    # A friendship has at most one competition a day.
    competitions = min(round(_COMPETITIONS * size), friendships * days)
    # One random stream for each part, so that parts do not affect one another.
    streams = np.random.SeedSequence(seed).spawn(4)
    graph_rng, event_rng, psi_rng, rng = map(np.random.default_rng, streams)
    community, traits, edges = _graph(graph_rng, users, friendships, p)
    events = _calendar(event_rng, days, p)
    psi = _influence(psi_rng, community, edges, days, p)
    attributes = _live(
        rng, traits, edges, events, psi, messages, competitions, p
    )
    network = HealthNetwork(
        attributes=attributes,
        attribute_names=[a[0] for a in _ATTRIBUTES],
        groups=_GROUPS,
        bounds=[a[2] for a in _ATTRIBUTES],
        activity="average_steps",
        active_threshold=_ACTIVE,
        resolution="daily",
        friendships=edges,
        synthetic=True,
        influence=psi,
        events=events,
        event_names=_EVENTS,
    )
    return _weekly(network) if resolution == "weekly" else network


def _weekly(network):
    """Sums a daily network by weeks. Leaves out the weekend event, which is the
    same in every week."""
    weeks = network.steps // _WEEK

    def by_week(values, axis):
        values = np.moveaxis(values, axis, 0)
        return values.reshape(weeks, _WEEK, *values.shape[1:])

    days = by_week(network.attributes, 1).astype(np.float64)
    how = np.array([a[1] for a in _ATTRIBUTES])
    attributes = np.where(
        how == "sum",
        days.sum(axis=1),
        np.where(how == "mean", days.mean(axis=1), days[:, -1]),
    )
    return dataclasses.replace(
        network,
        attributes=attributes.swapaxes(0, 1),
        bounds=[a[3] for a in _ATTRIBUTES],
        resolution="weekly",
        influence=by_week(network.influence, 0).mean(axis=1),
        events=by_week(network.events[:, 1:], 0).mean(axis=1),
        event_names=_EVENTS[1:],
    )


def _gumbel(rng, log_weights):
    """Keys whose largest k are a weighted draw without replacement."""
    return log_weights + rng.gumbel(size=np.shape(log_weights))


def _graph(rng, users, friendships, p):
    """Communities, traits `(users, 2)` and a homophilous graph."""
    centres = rng.normal(size=(p.communities, 2))
    community = rng.integers(p.communities, size=users)
    traits = centres[community]
    traits = traits + p.community_spread * rng.normal(size=(users, 2))
    sociability = p.sociability * rng.normal(size=users)
    a, b = np.triu_indices(users, k=1)
    distance2 = ((traits[a] - traits[b]) ** 2).sum(axis=1)
    weight = sociability[a] + sociability[b] - distance2 / (2 * p.homophily**2)
    keys = _gumbel(rng, weight)
    # The best friendship of every user first, so that each has a friend.
    table = np.full((users, users), -np.inf)
    table[a, b] = table[b, a] = keys
    best = table.argmax(axis=1)
    ids = np.arange(users)
    first = np.zeros((users, users), bool)
    first[np.minimum(ids, best), np.maximum(ids, best)] = True
    keys[first[a, b]] = np.inf
    chosen = np.sort(np.argsort(-keys, kind="stable")[:friendships])
    return community, traits, np.stack([a[chosen], b[chosen]], axis=1)


def _remember(rng, steps, size, memory):
    """Stationary AR(1) of standard deviation 1, `(steps, size)`."""
    shocks = rng.normal(size=(steps, size))
    values = np.empty_like(shocks)
    values[0] = shocks[0]
    for t in range(1, steps):
        values[t] = memory * values[t - 1] + np.sqrt(1 - memory**2) * shocks[t]
    return values


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))


def _calendar(rng, days, p):
    """Public events `(days, 5)` in [0, 1], as in `_EVENTS`."""
    day = np.arange(days)
    date = (p.first_day - 1 + day) % _YEAR + 1
    campaign = np.empty(days)
    stop = 1 / p.campaign_days
    start = stop * p.campaign_share / (1 - p.campaign_share)
    on = rng.uniform() < p.campaign_share
    for t in day:
        campaign[t] = on
        on = rng.uniform() > stop if on else rng.uniform() < start
    weather = _remember(rng, days, 1, p.weather_memory)[:, 0]
    return np.stack(
        [
            day % _WEEK >= 5,
            np.isin(date, p.holidays),
            campaign,
            # Coldest in the middle of January.
            0.5 - 0.5 * np.cos(2 * np.pi * (date - 15) / _YEAR),
            _sigmoid(p.weather_spread * weather),
        ],
        axis=1,
    )


def _influence(rng, community, edges, days, p):
    """psi `(days, 2E)`: how visible a friend is; independent of activity."""
    source, target = np.concatenate([edges, edges[:, ::-1]]).T
    closeness = p.closeness * rng.normal(size=len(source))
    challenge = p.challenge * _remember(
        rng, days, p.communities, p.challenge_memory
    )
    visible = p.visibility * _remember(
        rng, days, len(community), p.visibility_memory
    )
    return _sigmoid(
        p.influence_level
        + closeness
        + challenge[:, community[target]]
        + visible[:, source]
    ).astype(np.float32)


def _live(rng, traits, edges, events, psi, messages, competitions, p):
    """Runs the days. Returns attributes."""
    users, days = len(traits), len(events)
    source, target = np.concatenate([edges, edges[:, ::-1]]).T
    friends = np.bincount(target, minlength=users)
    # Numbers of a day: more in campaigns, exact in total.
    busy = 1 + events[:, _EVENTS.index("campaign")]
    message_days = rng.multinomial(messages, busy / busy.sum())
    competition_days = _within(
        rng.multinomial(competitions, busy / busy.sum()), len(edges)
    )
    names = [topic for topic, _ in _TOPICS]
    usual = np.array([part for _, part in _TOPICS], float)
    support = np.where(np.isin(names, _SUPPORT), usual, 0)
    topics = np.stack([usual, support]) / [[usual.sum()], [support.sum()]]

    base = (
        p.motivation_level
        + p.motivation_trait * traits[:, 0]
        + p.motivation_spread * rng.normal(size=users)
    )
    motivation = base + p.motivation_start * rng.normal(size=users)
    weekend = p.weekend + p.weekend_spread * rng.normal(size=users)
    effects = np.array(
        [0, p.holiday, p.campaign, p.warm_season, p.fair_weather]
    )
    effect = (events - events.mean(axis=0)) @ effects
    away = events[:, 0] - 2 / _WEEK
    stride = p.stride + p.stride_spread * rng.normal(size=users)
    fitness = _sigmoid(base)
    build = p.bmi_level + p.bmi_spread * rng.normal(size=users)
    bmi = build - p.bmi_activity * fitness
    heart = p.pulse_level + p.pulse_spread * rng.normal(size=users)
    spell = p.spell * _remember(rng, days, users, p.spell_memory)
    usual_pressure = _sigmoid(p.influence_level) * (1 + p.presence) / 2
    excess = [np.zeros(users)] * 3
    debt, pressure, rivals = np.zeros((3, users))

    attributes = np.empty((users, days, len(_ATTRIBUTES)))
    past = []
    for t in range(days):
        z = (
            motivation
            + effect[t]
            + weekend * away[t]
            + p.contagion * pressure
            + p.competition * np.minimum(rivals, p.competition_most)
            + spell[t]
            - p.fatigue * debt
            + p.habit * excess[0]
            + p.activity_noise * rng.normal(size=users)
        )
        excess = [*excess[1:], z - motivation]
        debt = p.fatigue_memory * debt + excess[-1]
        activity = _sigmoid(z)
        fitness += p.fitness_return * (activity - fitness)
        equilibrium = build - p.bmi_activity * fitness
        bmi = bmi + p.bmi_return * (equilibrium - bmi)
        bmi += p.bmi_noise * rng.normal(size=users)
        wellness = 100 * _sigmoid(
            p.wellness_fitness * (fitness - 0.5)
            - p.wellness_bmi * (bmi - 27)
            + p.wellness_noise * rng.normal(size=users)
        )
        pulse = heart - p.pulse_fitness * fitness
        pulse += p.pulse_noise * rng.normal(size=users)
        walked = _MOST_STEPS * activity
        distance = (
            walked
            * stride
            / 1000
            * (1 + p.distance_noise * rng.normal(size=users))
        )
        exercised = rng.uniform(size=users) < _sigmoid(p.exercise * z)
        achieved = activity > p.goal * fitness
        past.append((bmi, wellness))
        old_bmi, old_wellness = past[max(t - _WEEK, 0)]

        # Competitions of friends; the motivated challenge more.
        keen = p.competition_motivation * motivation
        keys = _gumbel(rng, keen[edges].sum(axis=1))
        met = edges[np.argsort(-keys, kind="stable")[: competition_days[t]]]
        met = np.where(rng.uniform(size=(len(met), 1)) < 0.5, met, met[:, ::-1])
        rivals = np.bincount(met.ravel(), minlength=users)

        # Messages go to friends who see the sender; motivated users write more.
        weight = psi[t] * np.exp(p.message_motivation * motivation[source])
        drawn = rng.choice(len(source), size=message_days[t], p=_shares(weight))
        to = target[drawn]
        help_out = activity[source[drawn]] > activity[to] + p.support_gap
        topic = np.array(
            [rng.choice(len(names), p=topics[int(h)]) for h in help_out], int
        )
        inbox = np.zeros((users, len(names)))
        np.add.at(inbox, (to, topic), 1)

        attributes[:, t] = np.column_stack(
            [
                rivals,
                exercised,
                achieved,
                walked,
                distance,
                inbox,
                bmi,
                bmi - old_bmi,
                wellness,
                wellness - old_wellness,
                pulse,
            ]
        )

        counts = p.presence + (1 - p.presence) * activity
        seen = np.bincount(target, psi[t] * counts[source], users)
        # Against an average tie to an average user.
        pressure = seen / friends - usual_pressure
        motivation = (
            motivation
            + p.motivation_return * (base - motivation)
            + p.motivation_contagion * pressure
            + p.motivation_message * inbox.sum(axis=1)
            + p.motivation_noise * rng.normal(size=users)
        )
    return attributes


def _shares(weight):
    weight = weight.astype(np.float64)
    return weight / weight.sum()


def _within(counts, most):
    """Moves what exceeds `most` to the days with room; same total."""
    counts = counts.copy()
    excess = np.maximum(counts - most, 0).sum()
    counts = np.minimum(counts, most)
    for t in range(len(counts)):
        move = min(excess, most - counts[t])
        counts[t] += move
        excess -= move
    return counts
