"""List the ops of an asset's program as JSON: a process of its own, which a damaged one may end.

    python mlprogram/src/mlprogram/package/asset_listing.py App.aimodel/main.mlirb

It imports coreai-core and nothing of this library, which would take longer than the reading.
"""

from collections.abc import Iterator
import json
from pathlib import Path
import sys
from typing import Any


def main(program: Path) -> None:
    """Print a list with the fields of `asset.AssetOp` of each op, on the last line of stdout."""
    from coreai._compiler._mlir_libs._coreaiIR._bindings.compiler import load_module_from_bytecode
    from coreai.authoring import Context

    module = load_module_from_bytecode(context=Context()._mlir_context, path=program)
    found: dict[str, list[dict]] = {}
    for function, op in _ops(module.body, ""):
        found.setdefault(function, []).append(_fields(op))
    print(json.dumps([
        {"function": function, "number": number, "of": len(rows) - 1, **row}
        for function, rows in found.items()
        for number, row in enumerate(rows)
    ]))  # fmt: skip


def _ops(block: Any, function: str) -> Iterator[tuple[str, Any]]:
    """Every op with the function that it is in; a function comes before its ops."""
    for op in block.operations:
        own = op.attributes["sym_name"].value if _type(op) == "graph" else function
        if own:
            yield own, op
        for region in op.regions:
            for inner in region.blocks:
                yield from _ops(inner, own)


def _type(op: Any) -> str:
    return op.operation.name.rpartition(".")[2]


def _fields(op: Any) -> dict:
    arguments = op.regions[0].blocks[0].arguments if _type(op) == "graph" else ()
    return {
        "type": _type(op),
        "operands": [str(value.type) for value in arguments] or [*map(_operand, op.operands)],
        "results": [str(value.type) for value in op.results],
    }


def _operand(value: Any) -> str:
    """A scalar constant itself, of any other value the type."""
    made = value.owner
    scalar = "x" not in (text := str(value.type)).removeprefix("tensor<")
    if scalar and getattr(made, "name", "") == "coreai.constant":
        return str(made.attributes["value"])
    return text


if __name__ == "__main__":
    main(Path(sys.argv[1]))
