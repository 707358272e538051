"""`keras-fm compose`: what many private releases cost together."""

import sys

from keras_fm.lab.commands import command_line
from keras_fm.lab.composition import side_by_side

NAME = "compose"
ALONE = True
SUMMARY = "what many private releases cost, by every composition theorem"

WORDS = """What many private releases cost, by every composition theorem.

  keras-fm compose
      10,000 steps of DP-SGD: noise multiplier 4, samples of 1 %
  keras-fm compose --mechanism=pure --epsilon=0.1 --count=1000
      any 0.1-DP mechanism, a thousand times
  keras-fm compose --plan=plan.toml
      several stages; the file holds tables [[stages]], whose entries are
      named as the flags mechanism, noise_multiplier, epsilon, delta,
      sampling_rate and count; a .json file holds {"stages": [{...}]}
  keras-fm compose --ledger=ledger.json
      what a model's ledger was charged with

How to read the table:
  epsilon     at the delta beside it
  bound       a proven upper bound; the smallest of them is the one to use
  as printed  a formula of a survey that drops terms: not a guarantee
  sampled_*   each step first amplified by sampling; the rows without it
              ignore sampling, which is valid but wasteful
  n/a         the method does not apply, and why

docs/composition.md names the theorems.
"""

_STAGE_FLAGS = (
    "mechanism",
    "noise_multiplier",
    "epsilon",
    "step_delta",
    "sampling_rate",
    "count",
)


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.string(
        "plan",
        None,
        "A .json or .toml file with the stages of a plan.",
    )
    flag.string(
        "ledger",
        None,
        "A ledger that a model saved (`Ledger.save`).",
    )
    flag.enum(
        "mechanism",
        "gaussian",
        ["gaussian", "laplace", "pure", "approximate"],
        "Plan of one stage: its mechanism. pure is any epsilon-DP one, "
        "approximate any (epsilon, delta)-DP one.",
    )
    flag.float(
        "noise_multiplier",
        None,
        "Standard deviation (gaussian; default 4) or scale (laplace) of the "
        "noise over the sensitivity.",
    )
    flag.float("epsilon", None, "Epsilon of one run.")
    flag.float("step_delta", None, "Delta of one run: approximate.")
    flag.float(
        "sampling_rate",
        None,
        "Probability that a record takes part in a run (Poisson sampling). "
        "Default: 0.01 for the default plan, otherwise 1.",
    )
    flag.integer("count", 10000, "Number of runs.")
    flag.enum(
        "neighbours",
        None,
        ["add_remove", "replace_one"],
        "Neighbouring relation of a plan of one stage (default add_remove). "
        "Noise is relative to the sensitivity under it; sampling needs "
        "add_remove.",
    )
    flag.float(
        "delta",
        None,
        "Total delta of every bound; 0 for pure plans. Default: that of the "
        "ledger, otherwise 1e-5.",
    )
    flag.list(
        "methods",
        None,
        "Comma-separated: basic, advanced, kairouz, optimal, the same with "
        "sampled_ before them, moments, renyi, pld, survey_basic, "
        "survey_advanced, survey_sampling, survey_accountant. Default: all.",
    )
    flag.list(
        "counts",
        None,
        "Comma-separated numbers of runs for the plot (of the whole plan, "
        "where it has several stages). Default: 1, 2, 5, 10, ...",
    )
    flag.string(
        "out",
        "runs/compose",
        "Folder for table.txt, composition.csv and composition.png. Empty "
        "writes nothing.",
    )


def _plan_and_delta(values):
    """The plan that the flags name, and the total delta."""
    from keras_fm.lab import composition

    given = [
        name for name in (*_STAGE_FLAGS, "neighbours") if values[name].present
    ]
    files = [name for name in ("plan", "ledger") if values[name].value]
    if len(files) + bool(given) > 1:
        names = ", ".join(f"--{name}" for name in files + given)
        raise ValueError(
            f"give a plan, a ledger, or the flags of one stage, not {names}."
        )
    delta = 1e-5 if values.delta is None else values.delta
    if values.plan:
        return composition.Plan.load(values.plan), delta
    if values.ledger:
        from keras_fm.kernel.ledger.ledger import Ledger

        ledger = Ledger.load(values.ledger)
        if values.delta is None:
            delta = ledger.budget.delta
        return composition.Plan.of_ledger(ledger), delta
    noise, rate = values.noise_multiplier, values.sampling_rate
    if set(given) <= {"count"}:
        noise, rate = 4.0, 0.01
    elif noise is None and values.mechanism == "gaussian":
        noise = 4.0
    stage = composition.Stage(
        mechanism=values.mechanism,
        noise_multiplier=noise,
        epsilon=values.epsilon,
        delta=values.step_delta,
        sampling_rate=1.0 if rate is None else rate,
        count=values.count,
    )
    return composition.Plan([stage], values.neighbours or "add_remove"), delta


def run(values, rest):
    """Runs the command; returns the exit status."""
    del rest
    from keras_fm.lab import composition

    counts = command_line.numbers("counts", values.counts or (), int) or None
    plan, delta = _plan_and_delta(values)
    composed = composition.compose(plan, delta, values.methods)
    text = composition.table(composed)
    sys.stdout.write(f"{side_by_side.title(plan, delta)}\n\n{text}\n")
    if values.out:
        by_count = side_by_side.series(plan, delta, counts, values.methods)
        side_by_side.write(plan, delta, composed, by_count, values.out)
        from keras_fm.lab import provenance
        from keras_fm.lab.engine import files

        made = provenance.record(command_line.of(NAME, values))
        files.write_json(values.out, "summary.json", {"kind": NAME, **made})
        sys.stdout.write(
            f"\nWritten to {values.out}: table.txt, composition.csv, "
            "composition.png, summary.json\n"
        )
    return 0
