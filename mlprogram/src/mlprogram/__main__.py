"""The command `mlprogram`: inspect a package, run it, or compare two.

    mlprogram inspect model.mlpackage                its functions, inputs, ops and weights
    mlprogram run model.mlpackage                    results, time and memory on random inputs
    mlprogram diff model.mlpackage other.mlpackage   the first op where two differ; with one
                                                     package, half against single precision

Exit codes: 0; 1 if `diff` finds a difference; 2 for an error that the user can fix.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from mlprogram import terminal

__all__ = ["main"]


def main() -> None:
    """The entry point: run a command and exit with its code."""
    terminal.run(_command)


def _command() -> int:
    asked = _parser().parse_args()
    return {"inspect": _inspect, "run": _run, "diff": _diff}[asked.command](asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mlprogram", description="Run and look into Core ML's ML Programs, on any machine."
    )
    from mlprogram import __version__

    parser.add_argument("--version", action="version", version=f"mlprogram {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="inspect|run|diff")
    inspect = commands.add_parser("inspect", help="show what a package holds")
    inspect.add_argument("package", type=Path, help="a .mlpackage or .mlmodelc")
    inspect.add_argument(
        "--plan", action="store_true", help="show which kernel each op got, and why not others"
    )
    run = commands.add_parser("run", help="run a package and show what it computes and needs")
    run.add_argument("package", type=Path, help="a .mlpackage or .mlmodelc")
    run.add_argument("--out", type=Path, help="write the outputs as .npz")
    diff = commands.add_parser("diff", help="show where two packages part; exit code 1 if they do")
    diff.add_argument("package", type=Path, help="a .mlpackage or .mlmodelc")
    diff.add_argument(
        "reference", type=Path, nargs="?", help="the reference; without it, single precision"
    )
    diff.add_argument(
        "--tolerance",
        type=_from_zero(float),
        default=0.01,
        help="relative to the reference's largest",
    )
    for command in (run, diff):
        command.add_argument("--inputs", type=Path, help="a .npz file; else random ones")
        command.add_argument("--seed", type=_from_zero(int), default=0, help="of random inputs")
    for command in (inspect, run, diff):
        command.add_argument("--function", help="of the package, by default its own default")
        command.add_argument(
            "--precision",
            default="fp16",
            metavar="P",
            help="fp16, fp32, or ane: with activations as the engine is published to compute them",
        )
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _from_zero(kind: Callable[[str], float]) -> Callable[[str], float]:
    """A parser of non-negative numbers of this kind, for argparse."""

    def read(text: str) -> float:
        value = kind(text)
        if not value >= 0:
            raise argparse.ArgumentTypeError(f"{text} is less than 0")
        return value

    read.__name__ = kind.__name__  # argparse says what is no such number
    return read


def _inspect(asked: argparse.Namespace) -> int:
    from mlprogram.contents import inspect_package, package_report

    facts = inspect_package(asked.package)
    texts = [package_report(facts)]
    if asked.plan:
        from mlprogram.kernel_report import plan_report, planned

        facts["plan"] = planned(asked.package, asked.function, asked.precision)
        texts.append(plan_report(facts["plan"]))
    terminal.show(lambda: facts, lambda: "\n\n".join(texts), asked.json)
    return 0


def _run(asked: argparse.Namespace) -> int:
    from mlprogram.execute import execute, execution_report

    facts = execute(
        asked.package,
        function=asked.function,
        inputs=asked.inputs,
        precision=asked.precision,
        seed=asked.seed,
        out=asked.out,
    )
    terminal.show(lambda: facts, lambda: execution_report(facts), asked.json)
    return 0


def _diff(asked: argparse.Namespace) -> int:
    from mlprogram.compare.packages import compare_packages

    found = compare_packages(
        asked.package,
        asked.reference,
        function=asked.function,
        inputs=asked.inputs,
        precision=asked.precision,
        tolerance=asked.tolerance,
        seed=asked.seed,
    )
    terminal.show(lambda: found.facts, lambda: found.text, asked.json)
    return 0 if found.equal else 1


if __name__ == "__main__":
    main()
