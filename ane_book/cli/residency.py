"""`ane-book residency`: where this Mac runs a package, or the packages of a bundle."""

from ane_book.cli import options
from ane_book.cli.load import path_of
from ane_book.cli.output import keep
from mlprogram.cli.options import AsJson, FunctionName
from mlprogram.cli.residency import Soak, Timeout, Units, end_without_engine, tell
from mlprogram.progress import progress_bar


def residency_command(
    path: options.Package,
    function: FunctionName = None,
    units: Units = "CPU_AND_NE",
    soak: Soak = 500,
    timeout: Timeout = 1800,
    as_json: AsJson = False,
) -> None:
    """Ask this Mac whether its Neural Engine runs a package.

    And whether it stays right there. Every program of a bundle gets its golden tokens, a package
    alone random inputs. A bundle keeps the answer in its evidence.json. Exit code 0: every function
    is resident; 1: one is not; 3: unmeasured, since this is no Mac with an engine.
    """
    from ane_book.bundle import Bundle
    from ane_book.evidence.inspect import is_bundle
    from mlprogram.package.container import open_container

    place = path_of(path)
    # What is no bundle and no package is told on any machine.
    bundle = Bundle.open(place) if is_bundle(place) else None
    if bundle is None:
        open_container(place)
    end_without_engine(place, as_json)
    from ane_book.evidence.residency import bundle_level, measure_each

    with progress_bar() as progress:
        found = dict(
            measure_each(place, function, progress, units=units, soak=soak, timeout=timeout)
        )
    ended = tell(found, as_json)
    if bundle and function is None:  # last: damaged evidence takes no answer along
        keep(bundle, "L2", bundle_level(found))
    raise ended
