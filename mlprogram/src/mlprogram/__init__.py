"""Run any Core ML ML Program on any machine.

    import mlprogram

    program = mlprogram.open("model.mlpackage")
    outputs = program.predict({"x": x})

Packages, compiled models and pipelines open; what they compute is held to coremltools' own tests.
Importing this sets one thing in the process that imports it: GOMP_SPINCOUNT, unless that is set.
"""

from importlib import import_module
import os
from typing import TYPE_CHECKING

# OpenMP's threads spin while they wait for each other. On a machine that others use too, a thread
# then spins for one that has no core, and a decode step takes ten times as long; a short spin costs
# nothing where the machine is quiet. Works if torch comes after this.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from mlprogram.compare import diff
    from mlprogram.contents import inspect_package as inspect
    from mlprogram.coreml import enable
    from mlprogram.package.container import save
    from mlprogram.run.pipeline import Pipeline
    from mlprogram.run.pipeline import open_model as open
    from mlprogram.run.program import MLProgram, State

__all__ = ["MLProgram", "Pipeline", "State", "diff", "enable", "inspect", "open", "save"]
__version__ = "0.1.0"

pytest_plugins = ("mlprogram.coreml",)  # what `pytest -p mlprogram` loads

#: Where the public names live; each is imported at first use: what only reads a package needs no
#: torch.
_HOMES = {
    "MLProgram": ("mlprogram.run.program", "MLProgram"),
    "Pipeline": ("mlprogram.run.pipeline", "Pipeline"),
    "State": ("mlprogram.run.program", "State"),
    "diff": ("mlprogram.compare", "diff"),
    "enable": ("mlprogram.coreml", "enable"),
    "inspect": ("mlprogram.contents", "inspect_package"),
    "open": ("mlprogram.run.pipeline", "open_model"),
    "save": ("mlprogram.package.container", "save"),
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'mlprogram' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})  # what was not imported yet, too
