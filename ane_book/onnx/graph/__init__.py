"""Any ONNX graph to a Core ML package, through coremltools' builder of MIL.

`convert_graph` reads the file, folds what is known, says each node in MIL, and has coremltools run
its passes and write the package. What cannot be said is refused by name. For language models in
ONNX Runtime's form see `ane_book.onnx.decoder`: they become stateful bundles.

    source.py      the file made ready: its functions written out, its opset (`older`) and the
                   order of its nodes (`order`) as they are known here
    signature.py   inputs and outputs, as Core ML has them
    translate.py   each node in MIL, or folded; `values.py` has what it gives
    ops/           ONNX's operators in MIL
    half.py        what is changed, or left in single precision, before fp16 is made of the rest
"""

from collections.abc import Mapping
from pathlib import Path
import tempfile
from typing import Literal, get_args
import warnings

from ane_book.conversion.target import exchange, telling
from ane_book.errors import InvalidInput
from ane_book.progress import silent_coremltools
import numpy as np

__all__ = ["Precision", "convert_graph"]

Precision = Literal["fp16", "fp32"]


@silent_coremltools()
def convert_graph(
    path: str | Path,
    out: str | Path,
    precision: Precision = "fp16",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    force: bool = False,
) -> Path:
    """Convert an ONNX graph to an `.mlpackage`, and return its path.

    precision: what its numbers are computed and its real inputs and outputs given in. Whole numbers
    are int32, and so is truth where it goes in or out; a single number there has shape (1,).
    shapes: of inputs whose sizes the graph leaves open. constants: inputs that are to be known from
    now on. force: replace what is there.

    Raises InvalidInput, OutOfSpace, InvalidWeights, UnsupportedModel, UnsupportedOp,
    BackendUnavailable.
    """
    path, out = Path(path), Path(out)
    if precision not in get_args(Precision):
        raise InvalidInput(f"precision must be one of fp16, fp32, not {precision!r}")
    if out.suffix != ".mlpackage":
        raise InvalidInput(f"{out} must be named .mlpackage, as packages are")
    if out.exists() and not force:
        raise InvalidInput(f"{out} exists; choose another name or pass force=True (--force)")
    if out.is_symlink() or (out.exists() and not (out / "Manifest.json").is_file()):
        raise InvalidInput(f"{out} is no package, and stays as it is; choose another name")
    _write(_program(path, precision, shapes or {}, constants or {}), out, precision)
    return out


def _program(path: Path, precision: Precision, shapes: Mapping, constants: Mapping):
    """The graph as coremltools' Program."""
    from ane_book.onnx.graph.half import bound_masks
    from ane_book.onnx.graph.signature import GraphSignature
    from ane_book.onnx.graph.source import GraphSource
    from ane_book.onnx.graph.translate import GraphWalk
    import coremltools as ct
    from coremltools.converters.mil.mil import Function, Program

    walk = GraphWalk(GraphSource(path), constants)
    signature = GraphSignature(walk, shapes, precision)
    program = Program()
    with Function(signature.placeholders(), opset_version=ct.target.iOS18) as function:
        signature.enter(function)
        walk.convert(walk.graph.node)
        function.set_outputs(signature.leave())
    # A name of its own for each value and op: the builder's are not held against the graph's.
    seen = {x.name for x in [*function.outputs, *function.inputs.values()]}
    for operation in function.operations:
        for x in operation.outputs:
            if x in function.outputs:
                continue
            name, count = x.name, 1
            while x.name in seen:
                count += 1
                x.name = f"{name}_v{count}"
            seen.add(x.name)
        if operation.outputs:
            operation.name = operation.outputs[0].name  # what its result in fp16 is called after
    if precision == "fp16":
        bound_masks(function)
    program.add_function("main", function)
    return program


def _write(program, out: Path, precision: Precision) -> None:
    """Run coremltools' passes, and write the package whole or not at all."""
    from ane_book.onnx.graph.half import is_half
    import coremltools as ct

    numbers = ct.precision.FLOAT32
    if precision == "fp16":
        numbers = ct.transform.FP16ComputePrecision(op_selector=is_half())
    passes = ct.PassPipeline()
    passes.remove_passes({"common::add_int16_cast"})  # it narrows what it knows no range of
    with telling(out):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ct.convert(
                program,
                source="milinternal",
                convert_to="mlprogram",
                compute_precision=numbers,
                minimum_deployment_target=ct.target.iOS18,
                skip_model_load=True,
                pass_pipeline=passes,
            )
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.stem}-") as folder:
            made = Path(folder) / out.name
            model.save(str(made))
            exchange(made, out)
