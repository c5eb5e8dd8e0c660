"""`mlprogram place`: predict where Core ML would run a package, as text or JSON."""

from collections import Counter
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Literal

from mlprogram.cli import options
from mlprogram.progress import progress_bar
from mlprogram.tables import table
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from mlprogram.ane.mac.plan import CoreMLPlan
    from mlprogram.ane.placement import Placement


Chip = Annotated[
    str,
    typer.Option(
        help="m2, m4, m6: their estimates are published. m1, m3, m5, a15 to a19 and their "
        "pro and max, any: the M4's, widened."
    ),
]
Ops = Annotated[bool, typer.Option("--ops", help="Show every op.")]
Failing = Annotated[
    Literal["cpu", "depends", "never"],
    typer.Option(help="Exit code 1 where a verdict is the CPU; depends: or where one depends."),
]
SHOWN = 2  # edits, and reasons of a kind, that a summary shows
WIDTH = 80


def place_command(
    path: options.Packages,
    chip: Chip = "m4",
    function: options.FunctionName = None,
    ops: Ops = False,
    why: options.Why = False,
    as_json: options.AsJson = False,
    fail_on: Failing = "never",
) -> None:
    """Predict which ops Core ML runs on the Neural Engine.

    Of a package, or of every program of a bundle, where the CPU and the Neural Engine are allowed.
    Follows Core ML's planner as far as it is known; on a Mac it shows the real plan as well.
    """
    from mlprogram.ane.mac.plan import read_plan

    placements = _placements(Path(path), chip, function)
    plans = [read_plan(each.package, each.function) for each in placements]
    show(lambda: _facts(placements, plans), lambda: _text(placements, plans, ops, why), as_json)
    failing = {"never": (), "cpu": ("CPU",), "depends": ("CPU", "depends")}[fail_on]
    raise typer.Exit(any(each.verdict in failing for each in placements))


def _facts(placements: "list[Placement]", plans: "list[CoreMLPlan]") -> dict | list[dict]:
    """The facts of a program, or a list of them if there are several."""
    from mlprogram.ane.placement.edits import edits

    facts = [
        each.to_json() | {"edits": [e.to_json() for e in edits(each)], "actual": plan.to_json(each)}
        for each, plan in zip(placements, plans, strict=True)
    ]
    return facts[0] if len(facts) == 1 else facts


def _text(placements: "list[Placement]", plans: "list[CoreMLPlan]", ops: bool, why: bool) -> str:
    parts = [_overview(placements, why)] if len(placements) > 1 else []
    if len(placements) == 1 or ops or why:
        for each, plan in zip(placements, plans, strict=True):
            parts.append(_summary(each, plan, why) + (_ops(each, plan) if ops else ""))
    else:
        parts.append(f"--function NAME or --why shows each.  {plans[0].line(placements[0])}")
    return "\n\n".join(parts)


def _placements(path: Path, chip: str, function: str | None) -> "list[Placement]":
    """The placement of a package's default function, or of every one in a folder or pipeline."""
    from mlprogram.ane.laws import packages_of
    from mlprogram.ane.placement import place
    from mlprogram.ane.placement.placed import find_functions
    from mlprogram.package.reader import read_programs

    found, placements = packages_of(path), []
    with progress_bar() as progress:
        for done, each in enumerate(found):
            if len(found) > 1:
                progress(each.name, done, len(found))
            programs = read_programs(each)
            alone = len(found) == len(programs) == 1
            for program in programs:
                name = function or (program.default_function if alone else None)
                functions = find_functions(program, name)
                placements += [place(program, chip, one.name) for one in functions]
    return placements


# --- text -----------------------------------------------------------------------------------------


def _span(one: float, other: float, form: str = "{:,.0f}") -> str:
    """The range of two numbers as text, or one number if they look the same."""
    low, high = (form.format(number) for number in sorted((one, other)))
    return low if low == high else f"{low} to {high}"


def _percent(one: float, other: float) -> str:
    return _span(100 * one, 100 * other, "{:.3g}") + " %"


def _overview(placements: "list[Placement]", why: bool) -> str:
    """A line for each program, and whether merging those that are too small would pay."""
    from mlprogram.ane.placement.edits import merged
    from mlprogram.ane.placement.placed import UNITS
    rows = [
        (Path(p.package).name, p.function, p.verdict,
         _percent(*sorted((p.worst.work, p.best.work))), f"{len(p.placed):,} ops")
        for p in placements
    ]  # fmt: skip
    title = f"arithmetic on the ANE (chip {placements[0].chip}), predicted for {UNITS}"
    lines = [title, *([f"stands on {placements[0].stands_on}"] if why else [])]
    unsure: Counter[str] = Counter()
    for each in placements:
        unsure.update(each.open)
    lines += [table(rows, indent=2), *_listed("not known", dict(unsure.most_common()), why)]
    lines += [line for text in merged(placements) for line in _wrapped(text)]
    return "\n".join(lines)


def _summary(placement: "Placement", plan: "CoreMLPlan", why: bool) -> str:
    from mlprogram.ane.placement.edits import edits
    from mlprogram.ane.placement.placed import UNITS

    best, worst, devices = placement.best, placement.worst, placement.devices
    counts = ", ".join(
        f"{devices.count(word):,} {label}"
        for word, label in (("ANE", "on the ANE"), ("CPU", "on the CPU"), ("depends", "depend"))
        if word in devices
    )
    rows = [
        ("ops", f"{len(devices):,}: {counts}" if devices else "none"),
        ("arithmetic", f"{_percent(worst.work, best.work)} on the ANE"),
        ("weight bytes", f"{_percent(worst.weights, best.weights)} on the ANE"),
        ("segments", f"{_span(len(worst.segments), len(best.segments))}, on the ANE "
                     f"{_span(worst.partitions, best.partitions)}"),
        ("planner's ms", f"{_span(best.route.cost, worst.route.cost, '{:.3g}')}, "
                         "what it believes, not a measurement"),
        ("holds for", f"{UNITS}; by default the GPU is a choice too"),
        *([("stands on", placement.stands_on)] if why else []),
    ]  # fmt: skip
    name = f"{Path(placement.package).name}, {placement.function}"
    parts = [f"{name}: {placement.verdict} (chip {placement.chip})"]
    parts += [f"  {label:<14}{text}" for label, text in rows]
    refused = Counter(
        p.support.reason + (f" ({p.support.claim})" if why and p.support.claim else "")
        for p in placement.placed if p.support.ane is False
    )  # fmt: skip
    parts += _listed("not taken", dict(refused.most_common()), why)
    parts += _listed("not known", placement.open, why)
    if found := edits(placement):
        shown = found if why else found[:SHOWN]
        parts.append(_title("would change it", len(shown), len(found)))
        for edit in shown:
            many = f"{len(edit.ops):,} ops, " if edit.ops else ""
            gain = f"({many}{_percent(edit.before, edit.after)} of the arithmetic)"
            parts += _wrapped(f"{edit.what} {gain}")
    return "\n".join([*parts, plan.line(placement)])


def _listed(title: str, counts: dict[str, int], why: bool) -> list[str]:
    rows = [(f"{count:,}", reason) for reason, count in counts.items()]
    shown = rows if why else rows[:SHOWN]
    return [_title(title, len(shown), len(rows)), table(shown, indent=2)] if rows else []


def _title(title: str, shown: int, known: int) -> str:
    return title if shown == known else f"{title} ({shown} of {known}; --why: all)"


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _ops(placement: "Placement", plan: "CoreMLPlan") -> str:
    """A line for each op: device, what was planned, estimates in microseconds, name, reason."""
    planned = plan.devices(placement)
    rows = [("device", "planned", "ANE us", "CPU us", "op", "name", "")]
    for each, device, found in zip(placement.placed, placement.devices, planned, strict=True):
        cpu = [times for backend, times in each.times.items() if backend != "ane"]
        least = _micro(min(low for low, _ in cpu), min(high for _, high in cpu))
        ane = "-" if each.support.ane is False else _micro(*each.times["ane"])
        rows.append((device, found or "-", ane, least, each.op.type,
                     each.op.name, each.support.reason))  # fmt: skip
    return f"\n{table(rows, indent=2)}"


def _micro(low: float, high: float) -> str:
    return _span(1e3 * low, 1e3 * high, "{:.3g}")
