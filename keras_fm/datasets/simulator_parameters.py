"""The constants of the simulated health network."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SimulatorParameters:
    """Constants of the simulator; health_simulator.py has the equations.

    Attributes:
        communities: number of communities.
        community_spread: standard deviation of a user's traits around the
            community's centre (centres have deviation 1).
        homophily: length in trait space over which friendships thin out.
        sociability: standard deviation of log sociability; the tail of the
            degrees.
        closeness: standard deviation of how close a directed tie is.
        challenge: standard deviation of a community's challenge, which
            makes its members visible to one another.
        challenge_memory: its correlation from one day to the next.
        visibility, visibility_memory: the same for one user's presence.
        influence_level: log odds of psi if all of the above are zero.
        first_day: day of the year of step 0, which is a Monday.
        holidays: days of the year.
        campaign_days: mean length of a campaign.
        campaign_share: share of the days with a campaign.
        weather_spread: standard deviation of the weather's log odds.
        weather_memory: its correlation from one day to the next.
        motivation_level: mean of the users' long-run motivation.
        motivation_trait: weight of the first trait in it.
        motivation_spread: standard deviation of the rest of it.
        motivation_start: standard deviation around it on step 0.
        motivation_return: daily share of the way back to it.
        motivation_noise: daily standard deviation.
        motivation_contagion: gain of motivation by social pressure.
        motivation_message: gain of motivation by a received message.
        weekend, holiday, campaign, warm_season, fair_weather: effects of
            the events on activity.
        weekend_spread: standard deviation of the weekend's effect between
            users.
        presence: how much a visible, inactive friend counts; a fully active one
            counts 1.
        contagion: effect of yesterday's social pressure on activity.
        competition: effect on activity of a competition begun yesterday.
        competition_most: the most competitions that count.
        fatigue: share of the debt of rest that is missing in activity.
        fatigue_memory: share of the debt that is left a day later.
        habit: share of the excess of three days ago that returns: people train
            every third day.
        spell, spell_memory: standard deviation and daily correlation of a
            user's good and bad spells.
        activity_noise: standard deviation of each day's independent noise.
        exercise: log odds of an exercising day per unit of activity.
        goal: the goal of a day, relative to fitness.
        stride, stride_spread: metres per step, mean and deviation between
            users.
        distance_noise: relative standard deviation of a day's distance.
        fitness_return: daily share by which fitness follows activity.
        bmi_return: daily share by which BMI follows its equilibrium.
        bmi_level, bmi_spread: BMI without activity, mean and deviation
            between users.
        bmi_activity: points of BMI between no activity and full activity.
        bmi_noise: daily standard deviation.
        wellness_fitness, wellness_bmi: log odds of wellness per unit of
            fitness, and lost per point of BMI above 27.
        wellness_noise: daily standard deviation of its log odds.
        pulse_level, pulse_spread: resting heart rate without fitness.
        pulse_fitness: beats between no fitness and full fitness.
        pulse_noise: daily standard deviation.
        message_motivation: effect of motivation on the log weight of a message.
        support_gap: how much more active a sender is (as a share of the
            most) who writes about a topic of support.
        competition_motivation: effect of both users' motivation on the log
            weight of a competition.
    """

    communities: int = 16
    community_spread: float = 0.5
    homophily: float = 0.7
    sociability: float = 0.8
    closeness: float = 0.5
    challenge: float = 2.2
    challenge_memory: float = 0.85
    visibility: float = 0.7
    visibility_memory: float = 0.8
    influence_level: float = -0.3
    first_day: int = 274
    holidays: tuple = (1, 15, 46, 146, 185, 247, 283, 315, 328, 358, 359, 365)
    campaign_days: float = 6.0
    campaign_share: float = 0.35
    weather_spread: float = 1.5
    weather_memory: float = 0.6
    motivation_level: float = -0.35
    motivation_trait: float = 0.45
    motivation_spread: float = 0.4
    motivation_start: float = 0.25
    motivation_return: float = 0.1
    motivation_noise: float = 0.06
    motivation_contagion: float = 0.2
    motivation_message: float = 0.1
    weekend: float = -0.5
    holiday: float = -0.6
    campaign: float = 1.2
    warm_season: float = 0.2
    fair_weather: float = 1.0
    weekend_spread: float = 0.4
    presence: float = 0.3
    contagion: float = 3.5
    competition: float = 0.35
    competition_most: int = 2
    fatigue: float = 0.4
    fatigue_memory: float = 0.6
    habit: float = 0.45
    spell: float = 0.55
    spell_memory: float = 0.6
    activity_noise: float = 0.3
    exercise: float = 2.0
    goal: float = 1.05
    stride: float = 0.72
    stride_spread: float = 0.05
    distance_noise: float = 0.05
    fitness_return: float = 0.07
    bmi_return: float = 0.02
    bmi_level: float = 30.0
    bmi_spread: float = 3.0
    bmi_activity: float = 6.0
    bmi_noise: float = 0.03
    wellness_fitness: float = 3.0
    wellness_bmi: float = 0.1
    wellness_noise: float = 0.05
    pulse_level: float = 78.0
    pulse_spread: float = 4.0
    pulse_fitness: float = 20.0
    pulse_noise: float = 1.5
    message_motivation: float = 0.8
    support_gap: float = 0.2
    competition_motivation: float = 0.8
