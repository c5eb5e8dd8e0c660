"""Convert any ONNX graph to a Core ML package with coremltools' MIL builder.

`convert_graph` reads the file, folds constants, translates each other node to MIL, and has
coremltools run its passes and write the package. A node without a form in MIL is refused by name.
Language models in ONNX Runtime's form are better read as weights, by who knows language models.

    source.py      reads the file and inlines its functions
    older.py       converts old opsets
    order.py       sorts the nodes topologically
    signature.py   maps inputs and outputs to Core ML's types
    translate.py   translates or folds each node
    definitions.py gives the operators that define another
    control.py     unrolls loops, and takes the one branch that runs
    values.py      a value of the graph during translation
    ops/           one function per ONNX operator, which builds it in MIL
    half.py        prepares the program for fp16: bounds masks, picks the ops to keep in fp32
"""

from collections.abc import Mapping
import logging
import os
from pathlib import Path
import shutil
import tempfile
from typing import Literal, get_args
import warnings

from mlprogram.errors import InvalidInput, printable
from mlprogram.files import exchange, telling
from mlprogram.onnx.file import load_onnx
from mlprogram.package.container import check_replaceable
from mlprogram.package.weight_files import spread_weights
from mlprogram.progress import silent_coremltools
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

    precision: of real numbers, in the program and at its inputs and outputs. Integers are int32, as
    are booleans at inputs and outputs, and a scalar there has shape (1,). A name that is not Core
    ML's is changed, which is logged as a warning.
    shapes: of inputs whose shape the graph leaves open. constants: values of inputs, which are then
    no longer inputs of the package. force: replace `out` if it exists.

    Raises InvalidInput, OutOfSpace, InvalidWeights, UnsupportedModel, UnsupportedOp,
    BackendUnavailable.
    """
    path, out = Path(path), Path(out)
    if precision not in get_args(Precision):
        raise InvalidInput(f"precision must be one of fp16, fp32, not {precision!r}")
    if out.suffix != ".mlpackage":
        raise InvalidInput(f"{out} must be named .mlpackage, as packages are")
    _check_place(out, force)
    program, renamed = _program(path, precision, shapes or {}, constants or {})
    _write(program, renamed, out, precision, force)
    if renamed:
        told = "; ".join(f"{kind} {theirs!r} is {ours!r}" for kind, theirs, ours in renamed)
        words = printable(f"{out}: Core ML's names are identifiers, so these changed: {told}")
        logging.getLogger("mlprogram").warning("%s", words)  # to stderr, unless the host says else
    return out


def _check_place(out: Path, force: bool) -> None:
    """Raise InvalidInput where something is that is not to be replaced."""
    if out.exists() and not force:
        raise InvalidInput(
            f"{out} exists; choose another name, or write over it by --force (force=True)"
        )
    if os.path.lexists(out):
        check_replaceable(out)


def _program(path: Path, precision: Precision, shapes: Mapping, constants: Mapping):
    """Translate the graph to a Program of coremltools; also give the names that it changed."""
    load_onnx()  # which the modules below import
    import coremltools as ct
    from coremltools.converters.mil.mil import Function, Program
    from mlprogram.onnx.graph.half import bound_masks
    from mlprogram.onnx.graph.signature import GraphSignature
    from mlprogram.onnx.graph.source import GraphSource
    from mlprogram.onnx.graph.translate import GraphWalk

    walk = GraphWalk(GraphSource(path), constants)
    signature = GraphSignature(walk, shapes, precision)
    program = Program()
    with Function(signature.placeholders(), opset_version=ct.target.iOS18) as function:
        signature.enter(function)
        walk.convert(walk.graph.node)
        function.set_outputs(signature.leave())
    # Make names unique: those that the builder chooses may clash with the graph's.
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
            operation.name = operation.outputs[0].name  # the fp16 result is named after the op
    if precision == "fp16":
        bound_masks(function)
    program.add_function("main", function)
    return program, signature.renamed()


def _write(
    program, renamed: list[tuple[str, str, str]], out: Path, precision: Precision, force: bool
) -> None:
    """Run coremltools' passes, and write the package atomically, large weights in several files.

    A changed name is kept in the description of its input or output.
    """
    import coremltools as ct
    from mlprogram.onnx.graph.half import is_half

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
        for kind, theirs, ours in renamed:
            described = model.input_description if kind == "input" else model.output_description
            described[ours] = f"{theirs!r} of the ONNX graph"
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.stem}-") as folder:
            made = Path(folder) / out.name
            model.save(str(made))
            shutil.rmtree(model.package_path, ignore_errors=True)  # or it stays till exit
            spread_weights(made)
            _check_place(out, force)  # again: since the first time minutes may have passed
            exchange(made, out)
