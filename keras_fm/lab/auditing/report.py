"""The report of an audit: bounds of every run, controls, one verdict."""

import dataclasses
import json
import math

from keras_fm.kernel.ledger import strict_json
from keras_fm.kernel.ledger.statement import rounded_up
from keras_fm.lab.auditing.one_run import OneRunBound

_FORMAT = 1
CONFIDENCE = 0.95
VIOLATED = "violated at 95%"
NOT_REFUTED = "not refuted"
NO_POWER = "inconclusive: no power"
GUARANTEES = ("claimed", "proven")
_MEANING = {
    VIOLATED: (
        "With 95% confidence the training does not have the privacy that is "
        "stated."
    ),
    NOT_REFUTED: (
        "This attack found no contradiction, and it finds one without "
        "privacy. This proves nothing: a stronger attack may find one."
    ),
    NO_POWER: (
        "Even without any privacy this attack shows no more than the stated "
        "epsilon. It can prove nothing. Train longer, or take a larger "
        "network or more canaries."
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """The statement that is audited.

    Attributes:
        epsilon, delta: of the statement.
        neighbours: `"add_remove"` or `"replace_one"`.
        guarantee: `"claimed"` (stated without a proof) or `"proven"` (a ledger
            composed it from mechanisms with proofs).
    """

    epsilon: float
    delta: float
    neighbours: str
    guarantee: str

    def __str__(self):
        return (
            f"{self.guarantee} (epsilon = {rounded_up(self.epsilon)}, "
            f"delta = {self.delta:g}), {self.neighbours}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedRun:
    """One private training and its control, on the same canaries.

    Attributes:
        seed: int, of canaries and coins.
        bound, control: `OneRunBound`s, each at 95% confidence.
        corrected, control_corrected: the same at the Bonferroni confidence for
            all seeds.
        seconds, control_seconds: duration of the trainings.
        diverged, control_diverged: numbers of canaries without finite outputs,
            which are guessed blindly.
    """

    seed: int
    bound: OneRunBound
    control: OneRunBound
    corrected: OneRunBound
    control_corrected: OneRunBound
    seconds: float
    control_seconds: float
    diverged: int = 0
    control_diverged: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditReport:
    """The result of `keras_fm.audit`: lower bounds on epsilon and a verdict.

    The control is a training without privacy: it shows whether the attack
    works. Canaries are records that the audit plants. All bounds are in the
    claim's relation. The report holds no coin, score or record.

    Attributes:
        claim: the `Claim`.
        design, kind, canaries, score: of the canaries and the attack.
        records: number of training records with all canaries.
        ceiling: the bound, corrected for the seeds, if every guess of one run
            had been right.
        runs: tuple of `SeedRun`.
        notes: tuple of str, further facts for the reader.
    """

    claim: Claim
    design: str
    kind: str
    canaries: int
    score: str
    records: int
    ceiling: float
    runs: tuple
    notes: tuple = ()

    @property
    def bound(self):
        """Lower bound on epsilon over all seeds, at 95%, Bonferroni."""
        return max(run.corrected.epsilon for run in self.runs)

    @property
    def control_bound(self):
        """The same for the control, the training without privacy."""
        return max(run.control_corrected.epsilon for run in self.runs)

    @property
    def at_ceiling(self):
        """Whether all guesses of the best private run were right."""
        best = max((run.corrected for run in self.runs), key=_epsilon)
        return best.at_ceiling

    @property
    def has_power(self):
        """Whether the control's bound is above the claim."""
        return self.control_bound > self.claim.epsilon

    @property
    def verdict(self):
        """`"violated at 95%"`, `"not refuted"` or `"inconclusive: no
        power"`.

        A bound above the claim refutes it. A bound below counts only if the
        control's bound is above the claim; otherwise the attack was too weak.
        """
        if self.bound > self.claim.epsilon:
            return VIOLATED
        return NOT_REFUTED if self.has_power else NO_POWER

    def line(self):
        """One line, for a log or `keras_fm.Ledger.note_audit`."""
        return (
            f"audit of {self.claim}: {self.verdict}; lower bound "
            f"{self.bound:.3g}, control {self.control_bound:.3g}, "
            f"{self.canaries} {self.kind} canaries ({self.design}), "
            f"{len(self.runs)} run(s)"
        )

    def text(self):
        """The report in words and a table of all runs."""
        each = 1 - (1 - CONFIDENCE) / len(self.runs)
        lines = [
            "Privacy audit",
            "=" * 13,
            f"statement:   {self.claim}",
            f"verdict:     {self.verdict}",
            f"             {_MEANING[self.verdict]}",
            f"lower bound: {self.bound:.3f}   (95% confidence over "
            f"{len(self.runs)} run(s))",
            f"control:     {self.control_bound:.3f}   (the same network "
            "without privacy, the same canaries)",
            f"ceiling:     {self.ceiling:.3f}   (all {self.canaries} guesses "
            "right: no bound can be larger)",
            f"canaries:    {self.canaries} of {self.records} records; kind "
            f"{self.kind}, design {self.design}, score {self.score}",
            "",
            "seed   bound  right/guessed  control  right/guessed"
            "   seconds  control s",
        ]
        for run in self.runs:
            lines.append(
                f"{run.seed:>4}  {run.bound.epsilon:>6.3f}  "
                f"{_counts(run.bound):>13}  {run.control.epsilon:>7.3f}  "
                f"{_counts(run.control):>13}  {run.seconds:>8.1f}  "
                f"{run.control_seconds:>9.1f}"
            )
        lines.append(
            "Each row at 95% by itself."
            + (
                f" The bounds above are the best of the rows at "
                f"{each:.2%} each (Bonferroni)."
                if len(self.runs) > 1
                else ""
            )
        )
        lines += [f"* {remark}" for remark in self.remarks()]
        return "\n".join(lines)

    def remarks(self):
        """The limits of this audit, as a list of sentences."""
        found = []
        if self.ceiling <= self.claim.epsilon:
            found.append(
                f"The ceiling {self.ceiling:.3f} is not above the stated "
                f"epsilon {self.claim.epsilon:g}: {self.canaries} canaries "
                "cannot refute any training. Plant more."
            )
        swap_only = self.design == "swap"
        if swap_only and self.claim.neighbours == "add_remove":
            found.append(
                "Swapped records audit replace_one. An add_remove epsilon is "
                "at most twice as large there, at a delta (1 + exp(epsilon)) "
                "times as large: bounds are divided by two accordingly, "
                "ceiling and control too."
            )
        if self.runs[0].bound.curve:
            found.append(
                "Bounds are for Gaussian noise: they refute that the training "
                "is as private, at all deltas, as a Gaussian mechanism with "
                "this epsilon at this delta. They do not apply to other noise, "
                "or to samples of the records."
            )
        if not swap_only:
            found.append(
                "The number of records depends on the coins. Give a training "
                "that uses it (as sampling rate or lot size) a constant, or it "
                "reveals their sum."
            )
        for run in self.runs:
            for who, number in (
                ("private", run.diverged),
                ("control", run.control_diverged),
            ):
                if number:
                    found.append(
                        f"Seed {run.seed}: the {who} training has no finite "
                        f"output for {number} of {self.canaries} canaries; "
                        "these were guessed blindly."
                    )
        return [*found, *self.notes]

    # Files -----------------------------------------------------------------

    def to_json(self):
        """The report as a JSON string."""
        summary = {
            "verdict": self.verdict,
            "bound": self.bound,
            "control_bound": self.control_bound,
            "at_ceiling": self.at_ceiling,
        }
        return json.dumps(
            {"format": _FORMAT, **summary, "report": dataclasses.asdict(self)},
            indent=1,
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text):
        """Loads a report; the verdict is computed again, not loaded.

        Raises:
            ValueError: if the text is not a report in a known format.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"unknown format {data['format']!r}")
            fields = data["report"]
            fields["claim"] = Claim(**fields["claim"])
            fields["runs"] = tuple(_run(run) for run in fields["runs"])
            fields["notes"] = tuple(fields["notes"])
            report = cls(**fields)
            if not report.runs:
                raise ValueError("it holds no run")
        except strict_json.MALFORMED as e:
            raise ValueError(f"This is not a keras_fm audit: {e}") from e
        return report

    def plot(self, path):
        """Writes a PNG: bounds of all runs beside claim and ceiling.

        Args:
            path: the file, or a binary file object.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        places = range(len(self.runs))
        names = (
            ("control_corrected", "without privacy (control)", "C7"),
            ("corrected", "audited training", "C0"),
        )
        for shift, (name, label, color) in zip((0.2, -0.2), names):
            axes.bar(
                [place + shift for place in places],
                [getattr(run, name).epsilon for run in self.runs],
                width=0.36,
                color=color,
                label=label,
            )
        axes.axhline(
            self.claim.epsilon,
            color="C3",
            linewidth=1.5,
            label=f"{self.claim.guarantee} epsilon",
        )
        axes.axhline(
            self.ceiling,
            color="black",
            linewidth=1,
            linestyle="--",
            label="ceiling",
        )
        axes.set_xticks(list(places), [f"seed {r.seed}" for r in self.runs])
        axes.set_ylim(0, 1.15 * max(self.ceiling, self.claim.epsilon))
        axes.set_ylabel(f"lower bound on epsilon ({self.claim.neighbours})")
        axes.set_title(
            f"{self.claim.guarantee} epsilon "
            f"{rounded_up(self.claim.epsilon, 4)}: {self.verdict}",
            fontsize=11,
        )
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.set_xlabel("every bar at the confidence that makes 95% of all")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        figure.savefig(path, dpi=150, format="png")

    def tensorboard(self, log_dir):
        """Writes the report to a TensorBoard folder.

        `audit/report` (text), `audit/plot` (image), and scalars:
        `audit/lower_bound`, `audit/control`, `audit/ceiling` and
        `audit/stated_epsilon` over all seeds, `audit_seeds/lower_bound` and
        `audit_seeds/control` of every run (its index is the step), each at 95%.

        Args:
            log_dir: TensorBoard folder, for example that of the training.

        Raises:
            ImportError: without the package `tensorboard`.
        """
        # Imported late: TensorFlow writes these files.
        from keras_fm.lab.auditing import report_board

        report_board.write(self, str(log_dir))

    def __repr__(self):
        return f"<AuditReport: {self.line()}>"


def _epsilon(bound):
    return bound.epsilon


def _counts(bound):
    return f"{bound.correct}/{bound.guesses}"


def _run(fields):
    names = ("bound", "control", "corrected", "control_corrected")
    bounds = {name: OneRunBound(**fields[name]) for name in names}
    for bound in bounds.values():
        if not (math.isfinite(bound.epsilon) and bound.epsilon >= 0):
            raise ValueError("a bound is not a number of at least 0")
    return SeedRun(**{**fields, **bounds})
