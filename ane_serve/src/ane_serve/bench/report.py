"""The report of a benchmark: a table in the form of maderix/ANE's (`prompts`), and JSON."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ane_serve.bench.answer import TimedAnswer
from mlprogram import machine

FORMAT = "ane-book bench 1"

#: Columns of the table: heading, what it shows.
COLUMNS: tuple[tuple[str, Callable[[TimedAnswer], float | None]], ...] = (
    ("Input", lambda answer: answer.prompt_tokens),
    ("Output", lambda answer: answer.tokens),
    ("Prefill(t/s)", lambda answer: answer.prefill_tps),
    ("Decode(t/s)", lambda answer: answer.decode_tps),
    ("First(ms)", lambda answer: 1e3 * answer.first_s),
    ("Latency(ms)", lambda answer: 1e3 * answer.total_s),
)
RATES = ("prefill_tps", "decode_tps")


@dataclass
class BenchSubject:
    """An engine or a server with its answers to each prompt; all figures are medians of these.

    start: seconds of a fresh process for one token; None where it was not measured.
    """

    name: str
    where: str
    answers: dict[str, list[TimedAnswer]]
    start: float | None = None

    @property
    def everything(self) -> list[TimedAnswer]:
        return [answer for answers in self.answers.values() for answer in answers]

    def average(self, rate: str) -> float | None:
        """The mean, over the prompts, of a rate's medians."""
        medians = [middle(getattr(a, rate) for a in answers) for answers in self.answers.values()]
        present = [value for value in medians if value is not None]
        return sum(present) / len(present) if present else None

    def own(self, rate: str) -> float | None:
        """The median of a rate that it reports itself."""
        return middle(answer.own.get(rate) for answer in self.everything)

    def spread(self) -> tuple[float, float, float] | None:
        """Least, median and largest decode rate of the answers to the prompt with the longest ones;
        short answers would measure the clock."""
        longest = max(self.answers.values(), key=lambda own: sum(a.tokens or 0 for a in own))
        rates = [answer.decode_tps for answer in longest if answer.decode_tps is not None]
        return (min(rates), median(rates), max(rates)) if len(rates) > 1 else None

    def to_json(self) -> dict:
        """Plain JSON values; None is unmeasured."""
        return {
            "name": self.name,
            "where": self.where,
            "prompts": {name: _facts(answers) for name, answers in self.answers.items()},
            "average": {rate: self.average(rate) for rate in RATES},
            "own": {rate: self.own(rate) for rate in ("prefill", "decode")},
            "decode_tps_min_median_max": self.spread(),
            "cached_tokens": sum(answer.cached for answer in self.everything),
            "cold_start_s": self.start,
        }


@dataclass
class BenchReport:
    """The results of all subjects; the others are compared with the first."""

    subjects: list[BenchSubject]
    repeats: int
    sampling: dict
    machine: dict[str, str] = field(
        default_factory=lambda: {"chip": machine.chip(), "system": machine.system()}
    )

    def ratios(self, other: BenchSubject) -> dict[str, dict[str, float | None]]:
        """The first one's rates over another's, and the other's latency over the first one's, by
        prompt: more than 1 is in favour of the first. Medians over answers that took turns."""
        by_prompt = {}
        for name, answers in self.subjects[0].answers.items():
            pairs = [*zip(answers, other.answers[name], strict=True)]
            by_prompt[name] = {
                rate: middle(ratio(getattr(a, rate), getattr(b, rate)) for a, b in pairs)
                for rate in RATES
            }
            by_prompt[name]["latency"] = middle(ratio(b.total_s, a.total_s) for a, b in pairs)
        return by_prompt

    def to_json(self) -> dict:
        """Plain JSON values."""
        first, *others = self.subjects
        return {
            "format": FORMAT,
            "machine": self.machine,
            "sampling": self.sampling,
            "repeats": self.repeats,
            "subjects": [subject.to_json() for subject in self.subjects],
            "ratios": {f"{first.name} / {other.name}": self.ratios(other) for other in others},
        }

    def text(self) -> str:
        """Tables for a terminal."""
        first, *others = self.subjects
        parts = [_table(subject) for subject in self.subjects]
        for other in others:
            rows = [
                (name, *(_number(value, 2) for value in row.values()))
                for name, row in self.ratios(other).items()
            ]
            head = "Ratio", "prefill", "decode", "latency"
            title = f"{first.name}, as a multiple of {other.name}"
            parts.append(f"{title}\n{_aligned([head, *rows])}")
        settings = ", ".join(f"{name} {value:g}" for name, value in self.sampling.items())
        parts.append(f"medians of {self.repeats}, timed where the text arrives; {settings}")
        return "\n\n".join(parts)


def middle(values: Iterable[float | None]) -> float | None:
    """The median of those that are numbers."""
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _facts(answers: list[TimedAnswer]) -> dict:
    names = "input_tokens", "output_tokens", "prefill_tps", "decode_tps", "first_ms", "latency_ms"
    shown = zip(names, COLUMNS, strict=True)
    return {name: middle(value(answer) for answer in answers) for name, (_, value) in shown}


def _table(subject: BenchSubject) -> str:
    heads = ("Prompt", *(head for head, _ in COLUMNS))
    rows = [
        (name, *(
            _number(middle(value(answer) for answer in answers), int(head.endswith("(t/s)")))
            for head, value in COLUMNS
        ))
        for name, answers in subject.answers.items()
    ]  # fmt: skip
    average = ["Average", "", "", *(_number(subject.average(rate), 1) for rate in RATES)]
    average += [""] * (len(heads) - len(average))
    lines = [subject.name, _aligned([heads, *rows, average])]
    if own := [f"{rate} {_number(subject.own(rate), 1)}" for rate in ("prefill", "decode")
               if subject.own(rate)]:  # fmt: skip
        lines.append(f"By its own account: {', '.join(own)} t/s")
    if cached := sum(answer.cached for answer in subject.everything):
        lines.append(f"Of its prompts it looked up {cached:,} tokens; they count for nothing")
    start = "unmeasured" if subject.start is None else f"{subject.start:.1f} s"
    lines.append(f"Cold start: {start}")
    if spread := subject.spread():
        low, centre, high = spread
        share = (high - low) / centre
        lines.append(f"Consistency: decode {low:.1f} to {high:.1f} t/s, a spread of {share:.0%}")
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
