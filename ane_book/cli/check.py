"""`ane-book check`: packages against the laws of the Neural Engine, a bundle against PyTorch."""

from pathlib import Path
import sys
from typing import TYPE_CHECKING, Annotated, Any

from ane_book.cli import options
from ane_book.cli.load import path_of, source_of
from ane_book.cli.output import keep
from ane_book.errors import printable
from mlprogram.cli.check import Annotations, FailOn, Rules, Sarif, annotated, width, write_sarif
from mlprogram.cli.commands import told_to_end
from mlprogram.cli.options import AsJson, Why
from mlprogram.progress import progress_bar
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from ane_book.bundle import Bundle
    from ane_book.evidence.parity import Parity
    from mlprogram.ane.laws import LawReport

Calibrate = Annotated[
    str | None,
    typer.Option(
        help="Look at the largest sums of a run, on the arrays of a .npz file; golden: on a "
        "bundle's own tokens."
    ),
]
Parities = Annotated[
    bool, typer.Option("--parity", help="Run a bundle too, and hold it to PyTorch's numbers.")
]
Source = Annotated[str | None, typer.Option(help="With --parity: the weights that it was made of.")]


@told_to_end()
def check(
    package: options.Packages,
    why: Why = False,
    as_json: AsJson = False,
    sarif: Sarif = None,
    fail_on: FailOn = "error",
    rules: Rules = None,
    calibrate: Calibrate = None,
    parity: Parities = False,
    source: Source = None,
    github: Annotations = None,
) -> None:
    """Check laws and known faults; with --parity, against PyTorch.

    Of a bundle the text side is looked at too: template, stop tokens, vocabulary.

    A bundle keeps what was found in its evidence.json, unless that has a stronger measurement: the
    laws as L0, parity as L1, which --source makes stronger. With --github it keeps nothing, so
    that a checkout stays as it is.

    Exit code 0: nothing as grave as --fail-on was found, and parity holds where it was
    asked for; 1: not so.
    """
    from ane_book.bundle import Bundle
    from ane_book.evidence.inspect import is_bundle
    from ane_book.evidence.laws import check as check_laws
    from ane_book.evidence.laws import laws_level
    from mlprogram.ane import faults, laws
    from mlprogram.package.description import load_inputs

    if source and source != "random":
        from ane_book.weights import open_source

        open_source(source)  # refused before what takes long
    chosen, path = laws.load(rules, also=faults.load()) if rules else None, path_of(package)
    bundle = Bundle.open(path) if chosen is None and is_bundle(path) else None
    inputs: Any = calibrate if calibrate in (None, "golden") else load_inputs(calibrate)
    with progress_bar() as progress:
        report = check_laws(path, chosen, progress, inputs)
    held = None
    if parity or source:
        from ane_book.evidence.parity import check_parity

        held = check_parity(path, source or source_of(package, path))
    if bundle:
        _add_text_side(report, bundle, source)
    github = annotated(github)
    if bundle and not github:
        keep(bundle, "L0", laws_level(report))
        if held is not None:
            keep(bundle, "L1", held.level())
    parity_text = "" if held is None else f"\n\n{printable(str(held))}"
    show(lambda: _json(report, held), lambda: f"{report.text(width(), why)}{parity_text}", as_json)
    if github:
        lines = _annotations(report, held, path)
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
    if sarif:  # last: what cannot be written takes nothing that was found along
        write_sarif(sarif, report)
    failed = fail_on != "never" and report.fails(fail_on)
    raise typer.Exit(int(failed or (held is not None and not held.passed)))


def _annotations(report: "LawReport", held: "Parity | None", path: Path) -> list[str]:
    from mlprogram.ane.laws.report import annotation

    if held is None or held.passed:
        return [*report.annotations()]
    place = str(path / (held.package or ""))
    return [*report.annotations(), annotation("error", place, 0, "parity", held.reason)]


def _add_text_side(report: "LawReport", bundle: "Bundle", source: str | None) -> None:
    from ane_book.evidence.text_side import check_text_side

    known = source if source and Path(source).exists() else None  # "random" has no files
    report.remarks, report.side = check_text_side(bundle, known), "the text side"
    report.place = str(bundle.path / "manifest.json")


def _json(report: "LawReport", held: "Parity | None") -> dict:
    facts = report.to_json() | {"text": [vars(finding) for finding in report.remarks]}
    if held is not None:
        facts["parity"] = {"passed": held.passed, "reason": held.reason, **held.figures()}
    return facts
