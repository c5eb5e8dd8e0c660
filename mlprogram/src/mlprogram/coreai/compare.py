"""The first op at which Core AI's runtime and the executor part: `mlprogram diff --backend coreai`.

An asset is written whose outputs are all values of the program, so one run names the op, and says
how far apart its inputs were. The price is that nothing is merged across a value that has to come
out: where the declared outputs alone differ, the fault is in what Core AI makes of several ops.
"""

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from mlprogram.compare import diff
from mlprogram.compare.packages import Comparison
from mlprogram.coreai.bridge import save_asset
from mlprogram.coreai.run import CoreAIBackend
from mlprogram.execute import arrays_of
from mlprogram.package.reader import Package
from mlprogram.run.program import MLProgram
from mlprogram.tables import table


def compare_with_executor(
    package: Path,
    function: str | None = None,
    inputs: Path | None = None,
    precision: str = "fp32",
    tolerance: float = 0.01,
    seed: int = 0,
) -> Comparison:
    """Every value of one function by the executor, op by op, against Core AI's: A and B.

    States are zero before the call. Raises what `save_asset` does, and InvalidInput for a
    precision that is neither "fp16" nor "fp32".
    """
    backend = CoreAIBackend(precision)
    program = MLProgram(package, function, precision).plain()
    given = arrays_of(program, inputs, seed)
    told = _every_value(Package(package), program.name)
    with TemporaryDirectory() as folder:
        asset = save_asset(told, Path(folder) / "every.aimodel", precision)
        ran = backend.open(asset, told.functions[program.name])
        theirs = ran.predict(dict(given), ran.make_state() if program.states else None)
        backend.close()
    found = diff(program, theirs, given, tolerance)
    on = str(inputs) if inputs else f"random inputs, seed {seed}"
    sides = {"A": "the executor, op by op", "B": "Core AI's runtime"}
    rows = [(side, who, str(package), program.name, precision) for side, who in sides.items()]
    facts = {"on": on, **sides, "function": program.name, "precision": precision}
    return Comparison(
        f"{table([*rows, ('on', on, '', '', '')])}\n\n{found}",
        found.equal,
        {**facts, "equal": found.equal, **asdict(found)},
    )


def _every_value(package: Package, name: str) -> Package:
    """The package with this function alone, whose outputs are all that its ops compute."""
    function = package.functions[name]
    package.functions = {name: function}
    made = [
        value
        for operation in function.block.operations
        if not operation.is_constant and operation.type not in ("read_state", "write_state")
        for value, _ in operation.outputs
    ]
    function.block.outputs = list(dict.fromkeys([*made, *function.block.outputs]))
    return package
