"""MIL's ops in Core AI's: one small function each, named and called as `mlprogram.ops` has them.

A value is Core AI's; what shapes a computation is a Python value (`OPS[...].static`). Where Core AI
has the op it is taken, else the op is put together of others. What sums in float32 in the executor
does so here too, and rounds once. Importing this needs coreai-core.

Reference: the texts of the ops in coreai-core's `_coreai_ops_gen.py`; coremltools' `mil/ops/defs`.
"""

from collections.abc import Callable
from importlib import import_module
import pkgutil
from typing import Any

__all__ = ["COREAI_OPS"]

COREAI_OPS: dict[str, Callable[..., Any]] = {}


def op(name: str | None = None) -> Callable:
    """Register the function under its MIL name (by default its own)."""

    def register(function: Callable) -> Callable:
        COREAI_OPS[name or function.__name__] = function
        return function

    return register


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
