"""Run any Core ML ML Program on any machine, with PyTorch.

    import mlprogram

    program = mlprogram.open("model.mlpackage")
    outputs = program.predict({"x": x})

It opens packages, compiled models and pipelines, and its results pass coremltools' own tests.
Importing it sets the environment variable GOMP_SPINCOUNT, unless that is set.

    package/     reads and checks the files
    analysis/    constants, memory, and which values share it, before a run
    ops/         the ops, as functions on torch tensors
    kernels/     faster replacements of ops and groups of ops
    run/         plans, compiles and runs a function
    compare/     compares two programs value by value
"""

from importlib import import_module
import os
from typing import TYPE_CHECKING

# OpenMP's threads spin while they wait for each other. On a busy machine a thread then spins for
# one that has no core, and a decode step takes ten times as long; on a quiet machine a short spin
# costs nothing. This has an effect only if torch is imported later.
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
__version__ = "0.2.0"

pytest_plugins = ("mlprogram.coreml",)  # what `pytest -p mlprogram` loads

#: The modules of the public names. Each is imported at first use, since reading a package needs no
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
