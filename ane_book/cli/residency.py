"""`ane-book place` and `residency`: where Core ML would run a package, and where this Mac does."""

from ane_book.cli import options
from ane_book.cli.load import path_of
from ane_book.cli.output import keep
from mlprogram.cli.options import AsJson, FunctionName, Why
from mlprogram.cli.place import Chip, Failing, Ops
from mlprogram.cli.place import place_command as place_packages
from mlprogram.cli.residency import Soak, Timeout, Units, end_without_engine, tell
from mlprogram.progress import progress_bar


def place_command(
    path: options.Packages,
    chip: Chip = "m4",
    function: FunctionName = None,
    ops: Ops = False,
    why: Why = False,
    as_json: AsJson = False,
    fail_on: Failing = "never",
) -> None:
    """Predict which ops Core ML runs on the Neural Engine.

    Of a package, or of every program in a bundle's folder, with the CPU and the Neural Engine. By
    the rule of its planner and what that is known to believe; on a Mac also what it plans.
    """
    place_packages(path_of(path), chip, function, ops, why, as_json, fail_on)


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
