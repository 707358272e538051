"""Formulas of the survey of Manco and Pirro (2018) that are not bounds.

They are simplified forms from slides on DP-SGD, kept to reproduce the printed
example (docs/composition.md). Do not use them as guarantees.
"""

import math

from keras_fm.kernel.compose import gaussian_epsilon
from keras_fm.lab.composition.composed import Composed, none
from keras_fm.lab.composition.steps import has_gaussian


def survey_basic(plan, delta):
    """`(T e, T delta)` with `e = sqrt(2 ln(1/delta)) / sigma`, as printed.

    It holds if one step is (e, delta)-DP. The formula for e does not ensure
    that: its proof needs 1.25/delta, and e below 1. The survey also prints
    `sigma = sqrt(ln(1/delta)) / e`, without the 2 that its example has.
    """

    def formula(count, rate, step):
        del rate
        exact = gaussian_epsilon(float(plan.stages[0].noise_multiplier), delta)
        note = (
            f"no bound in general; a step: {step:.3g}, by the printed sigma "
            f"{step / math.sqrt(2):.3g}, exact {exact:.3g}"
        )
        return count * step, count * delta, note

    return _survey("survey_basic", plan, delta, formula)


def survey_advanced(plan, delta):
    """`(e sqrt(T ln(1/delta)), T delta)`, as printed; not a bound.

    It leaves out the factor 2 under the root, the slack in delta and the
    drift `T e (exp(e) - 1)`.
    """

    def formula(count, rate, step):
        del rate
        epsilon = step * math.sqrt(count * math.log(1 / delta))
        return epsilon, count * delta, "no bound: drift and slack left out"

    return _survey("survey_advanced", plan, delta, formula)


def survey_sampling(plan, delta):
    """`2 q e sqrt(T ln(1/delta))`, as printed; not a bound."""

    def formula(count, rate, step):
        epsilon = 2 * rate * step * math.sqrt(count * math.log(1 / delta))
        note = "no bound: drift and slack left out"
        return epsilon, count * rate * delta, note

    return _sampled("survey_sampling", plan, delta, formula)


def survey_accountant(plan, delta):
    """`2 q e sqrt(T)` at the delta of one step, as printed; not a bound.

    The example's number, 1.25, comes from the accountant, not from this
    formula.
    """

    def formula(count, rate, step):
        epsilon = 2 * rate * step * math.sqrt(count)
        return epsilon, delta, "no bound in general"

    return _sampled("survey_accountant", plan, delta, formula)


def _sampled(method, plan, delta, formula):
    if not plan.is_sampled:
        return none(method, "no stage is sampled", "as printed")
    return _survey(method, plan, delta, formula)


def _survey(method, plan, delta, formula):
    kind = "as printed"
    if len(plan.stages) > 1 or not has_gaussian(plan):
        return none(method, "printed for one Gaussian stage", kind)
    if delta == 0:
        return none(method, "needs delta > 0", kind)
    stage = plan.stages[0]
    step = math.sqrt(2 * math.log(1 / delta)) / stage.noise_multiplier
    epsilon, total, note = formula(
        stage.count, float(stage.sampling_rate), step
    )
    if total >= 1:
        return none(method, f"its total delta is {total:.3g}", kind)
    return Composed(method, epsilon, total, kind, note)
