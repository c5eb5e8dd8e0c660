"""`ane-book report`: run all measurements on this machine, and write a report to keep or send."""

from pathlib import Path
from typing import Annotated

from mlprogram.progress import progress_bar
import typer

HOW = (
    "To contribute it, open {page} and {file} and read them: they hold no path and no name of a "
    "user or a machine, but of your own packages the names of functions and ops. Then add {file} "
    "to research/reports/, under another name, by a pull request or an issue. The book shows it "
    "as it is."
)


def report_command(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Packages and folders of bundles of your own.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A reference model to convert and measure; none: no model.")
    ] = "smollm2-135m-instruct",
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("ane-book-report"),
    soak: Annotated[int, typer.Option(min=1, help="Predictions in a row on the engine.")] = 500,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each part.")] = 1800,
    experiments: Annotated[
        bool,
        typer.Option(help="Run the experiments of research/experiments, each an hour at most."),
    ] = True,
) -> None:
    """Measure this machine, and write JSON and a page.

    Laws, parity, residency, speed, experiments. Off a Mac the executor stands for Core ML, and
    residency is unmeasured. Your own bundle alone, without what may take hours:

    ane-book report BUNDLE --model none --no-experiments

    Of your own packages the report holds a hash, figures, and the names of functions and ops.
    """
    import ane_book
    from ane_book.evidence.inspect import inspect_path
    from ane_book.evidence.report import Settings, gather, write
    from ane_book.evidence.report.experiments import find_folder

    scripts, own = find_folder() if experiments else None, paths or []
    settings = Settings(soak, timeout, scripts)
    for path in own:
        inspect_path(path)  # what cannot be read is told before hours of measuring
    out.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        made = [ane_book.convert(model, progress=progress).path] if model != "none" else []
        report = gather(made + own, settings, progress)
    file, page = write(report, out)
    print(f"{file}\n{page}\n\n{HOW.format(file=file.name, page=page.name)}")
