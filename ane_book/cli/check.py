"""`ane-book check`: packages against the laws of the Neural Engine, a bundle against PyTorch."""

import json
from pathlib import Path
import sys
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from ane_book.cli import options
from ane_book.cli.load import path_of
from ane_book.cli.output import keep
from ane_book.errors import InvalidInput, printable
from mlprogram.cli.check import Annotations, FailOn, Rules, Sarif, annotated, width
from mlprogram.cli.options import AsJson
from mlprogram.progress import progress_bar
from mlprogram.terminal import show
import typer

if TYPE_CHECKING:
    from ane_book.bundle import Bundle
    from ane_book.evidence.parity import Parity
    from ane_book.evidence.text_side import TextFinding
    from mlprogram.ane.laws import LawReport
    from mlprogram.ane.laws.rule import Severity


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
Numbers = Annotated[bool, typer.Option("--numerics", hidden=True)]
Source = Annotated[str | None, typer.Option(help="With --parity: the weights that it was made of.")]


def check(
    package: options.Packages,
    as_json: AsJson = False,
    sarif: Sarif = None,
    fail_on: FailOn = "error",
    rules: Rules = None,
    calibrate: Calibrate = None,
    parity: Parities = False,
    source: Source = None,
    numerics: Numbers = False,
    github: Annotations = None,
) -> None:
    """Hold packages against the laws of the engine.

    Of a bundle the text side is looked at too: template, stop tokens, vocabulary.

    A bundle keeps what was found in its evidence.json, unless that has a stronger measurement: the
    laws as L0, parity as L1, which --source makes stronger. With --github it keeps nothing, so
    that a checkout stays as it is.

    Exit code 0: nothing as grave as --fail-on was found, and parity holds where it was
    asked for; 1: not so.
    """
    from ane_book.evidence.laws import check as check_laws
    from ane_book.evidence.laws import laws_level
    from mlprogram.ane import laws

    if numerics:
        raise InvalidInput(
            "check has no --numerics any more; `ane-book diff PACKAGE --precision ane` says where "
            "the engine's own activations change results"
        )
    chosen = laws.load(rules) if rules else None
    path = path_of(package)
    bundle = None if chosen else _bundle(path)
    with progress_bar() as progress:
        report = check_laws(path, chosen, progress, _inputs(calibrate))
    held = _parity(path, source) if parity or source else None
    texts = _texts(bundle, source) if bundle else []
    github = annotated(github)
    if bundle and not github:
        keep(bundle, "L0", laws_level(report))
        if held is not None:
            keep(bundle, "L1", held.level())
    show(
        lambda: _facts(report, texts, held),
        lambda: _text(report, texts, held),
        as_json,
    )
    if github:
        lines = [*report.annotations(), *_text_annotations(path, texts), *_annotation(path, held)]
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
    if sarif:  # last: what cannot be written takes nothing that was found along
        sarif.write_text(json.dumps(_sarif(report, texts), indent=2) + "\n", encoding="utf-8")
    failed = fail_on != "never" and (report.fails(fail_on) or _fails(texts, fail_on))
    failed = failed or (held is not None and not held.passed)
    raise typer.Exit(1 if failed else 0)


def _bundle(path: Path) -> "Bundle | None":
    """The bundle in a folder, or None where it is none; raises InvalidBundle as `run` does."""
    from ane_book.evidence.inspect import is_bundle

    if not is_bundle(path):
        return None
    from ane_book.bundle import Bundle

    return Bundle.open(path)


def _inputs(calibrate: str | None):
    """The argument `calibrate` of the check: arrays by name, "golden", or None."""
    if calibrate in (None, "golden"):
        return calibrate
    from mlprogram.package.description import load_inputs

    return load_inputs(calibrate)


def _parity(path: Path, source: str | None) -> "Parity":
    from ane_book.evidence.parity import check_parity

    return check_parity(path, source)


def _texts(bundle: "Bundle", source: str | None) -> "list[TextFinding]":
    """What is wrong with a bundle's text side."""
    from ane_book.evidence.text_side import check_text_side

    known = source if source and Path(source).exists() else None  # "random" has no files
    return check_text_side(bundle, known)


def _fails(texts: "list[TextFinding]", level: "Severity") -> bool:
    from mlprogram.ane.laws.rule import SEVERITIES

    grave = SEVERITIES[: SEVERITIES.index(level) + 1]
    return any(finding.severity in grave for finding in texts)


def _text(report: "LawReport", texts: "list[TextFinding]", held: "Parity | None") -> str:
    from mlprogram.ane.laws.report import counted

    columns = width()
    wrapped = [
        fill(printable(str(finding)), columns, subsequent_indent="    ", break_long_words=False)
        for finding in texts
    ]
    laws = report.text(columns)
    if texts:
        laws += f"; {counted(finding.severity for finding in texts)} in the text side"
    parity = [] if held is None else [printable(str(held))]
    return "\n\n".join([*wrapped, laws, *parity])


def _sarif(report: "LawReport", texts: "list[TextFinding]") -> dict:
    """The laws' log, with the findings of the text side at the bundle's manifest."""
    log = report.sarif()
    place = {"physicalLocation": {"artifactLocation": {"uri": f"{report.path}/manifest.json"}}}
    log["runs"][0]["results"] += [
        {
            "ruleId": finding.name,
            "level": finding.severity,
            "message": {"text": finding.text},
            "locations": [place],
        }
        for finding in texts
    ]
    return log


def _text_annotations(path: Path, texts: "list[TextFinding]") -> list[str]:
    from mlprogram.ane.laws.report import annotation

    file = str(path / "manifest.json")
    return [annotation(one.severity, file, 0, one.name, one.text) for one in texts]


def _facts(report: "LawReport", texts: "list[TextFinding]", held: "Parity | None") -> dict:
    facts = report.facts() | {"text": [vars(finding) for finding in texts]}
    if held is not None:
        facts["parity"] = {"passed": held.passed, "reason": held.reason, **held.figures()}
    return facts


def _annotation(path: Path, held: "Parity | None") -> list[str]:
    """The annotation for GitHub of a bundle that failed parity, in a list; else []."""
    from mlprogram.ane.laws.report import annotation

    if held is None or held.passed:
        return []
    return [annotation("error", str(path / (held.package or "")), 0, "parity", held.reason)]
