"""What the converter makes of one ONNX graph, beside ONNX Runtime, in both precisions.

The outcome of a graph is one of

    right      both precisions give what ONNX Runtime gives
    fp16       single precision does; half precision does not, and neither does ONNX Runtime when
               each of its results is rounded to fp16
    refused    by name, with an error of the library
    wrong      neither of these: a fault of ours
    crash      something else than an error of the library came out
    no oracle  ONNX Runtime does not run the graph
"""

from pathlib import Path
import re
import tempfile
import time
import warnings

from mlprogram.errors import MLProgramError
import numpy as np

#: The largest error that is taken for right, by the range of an output.
TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}
#: How much larger an error may be than that of a run that differs in its roundings alone.
SLACK = 4
SEEDS = 6
LARGEST, STEP = float(np.finfo(np.float16).max), 2.0**-11  # of half precision


def judge(path: Path, given: dict[str, np.ndarray]) -> dict:
    """The outcome, with its reason, and what was measured on the way."""
    try:
        wanted = oracle(path, given)
    except Exception as problem:
        return {"outcome": "no oracle", "why": said(problem, path)}
    found = {"outcome": "right", "why": ""}
    for precision in ("fp32", "fp16"):
        try:
            found[precision] = measured(path, given, wanted, precision)
        except MLProgramError as refusal:
            return found | {"outcome": "refused", "why": said(refusal, path)}
        except Exception as problem:
            return found | {"outcome": "crash", "why": said(problem, path)}
        if not found[precision]["error"] <= TOLERANCE[precision]:
            found |= explained(path, given, wanted, precision, found[precision]["error"])
        if found["outcome"] == "wrong":
            break
    return found


def said(problem: Exception, path: Path) -> str:
    """The beginning of what an error says, without the folder and the colours of a terminal."""
    text = re.sub(r"\x1b\[\d*m", "", " ".join(str(problem).split()))
    text = text.replace(f"{path}: ", "").replace(f"{path.parent}/", "")
    return f"{type(problem).__name__}: {text}"[:300]


def oracle(path, given: dict[str, np.ndarray], plain: bool = False) -> list[np.ndarray]:
    """ONNX Runtime's outputs; plain: with none of its rewritings of the graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, given)]


def measured(path: Path, given: dict, wanted: list[np.ndarray], precision: str) -> dict:
    """The error of a conversion in a precision, the seconds it took, and what had to be known."""
    from mlprogram import MLProgram

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        package, known = converted(path, Path(folder) / "made.mlpackage", given, precision)
        seconds = time.perf_counter() - began
        program = MLProgram(package, precision=precision)
        arrays = [as_core_ml(array) for name, array in given.items() if name not in known]
        outputs = program.predict(dict(zip(program.inputs, arrays, strict=True)))
    return {
        "error": error(list(outputs.values()), wanted),
        "seconds": round(seconds, 2),
        "operations": len(program.operations),
        "known": sorted(known),
    }


def converted(path: Path, out: Path, given: dict, precision: str) -> tuple[Path, dict]:
    """The package, and those inputs that had to be made known."""
    from mlprogram.onnx.graph import convert_graph
    from mlprogram.onnx.graph.translate import NeedsConstant

    known = {}
    while True:
        shapes = {name: array.shape for name, array in given.items() if name not in known}
        try:
            return convert_graph(path, out, precision, shapes, known), known
        except NeedsConstant as need:
            if any(given[name].dtype.kind == "f" or name in known for name in need.origins):
                raise
            known |= {name: given[name] for name in need.origins}


def as_core_ml(value) -> np.ndarray:
    array = np.atleast_1d(np.asarray(value))
    whole = array.dtype.kind in "iub" or array.dtype.name.startswith(("int", "uint"))
    return array.astype(np.int32 if whole else np.float32)


def error(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest difference of an output by its range; infinite where shapes or NaNs differ."""
    assert len(found) == len(wanted)
    return max(map(difference, found, wanted), default=0.0)


def difference(got: np.ndarray, want: np.ndarray) -> float:
    if got.shape != (want.shape or (1,)):
        return float("inf")
    got, want = (np.asarray(a, np.float64).reshape(want.shape) for a in (got, want))
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    got, want = got[finite], want[finite]
    if not np.isfinite(got).all():
        return float("inf")
    largest = np.abs(want).max(initial=0)
    return float(np.abs(got - want).max(initial=0) / (largest or 1))


def explained(path: Path, given: dict, wanted: list, precision: str, found: float) -> dict:
    """Whether an error is that of rounding: seen by what rounding does to ONNX Runtime.

    Where a graph chooses (the best of nearly equal scores), a rounding may leave all as it is and
    the next turn it over: so there are several.
    """
    spread = error(oracle(path, given, plain=True), wanted)
    for seed in range(SEEDS if precision == "fp16" else 0):
        if found <= SLACK * spread:
            break
        try:
            spread = max(spread, error(oracle(rounded(path, seed), given, plain=True), wanted))
        except Exception as problem:
            why = f"fp16: {found:.1e}; not rounded: {said(problem, path)}"
            return {"outcome": "wrong", "why": why}
    why = f"{precision}: {found:.1e}; ONNX Runtime with other roundings: {spread:.1e}"
    if found <= SLACK * spread:
        return {"outcome": "fp16", "why": why} if precision == "fp16" else {"why": why}
    return {"outcome": "wrong", "why": why}


def rounded(path: Path, seed: int = 0) -> bytes:
    """The graph with each real number of it rounded to fp16, constants kept finite.

    seed: one other than 0 rounds weights up or down by chance.
    """
    from onnx import TensorProto, helper, load, numpy_helper, shape_inference

    random, model = np.random.default_rng(seed), shape_inference.infer_shapes(load(path))
    graph = model.graph
    infos = [*graph.value_info, *graph.output, *graph.input]
    real = {i.name for i in infos if i.type.tensor_type.elem_type == TensorProto.FLOAT}
    constant = {tensor.name for tensor in graph.initializer}
    for tensor in [*graph.initializer, *(a.t for n in graph.node for a in n.attribute)]:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            if seed and array.ndim > 1:
                array = array * (1 + STEP * random.uniform(-1, 1, array.shape))
            array = np.clip(array, -LARGEST, LARGEST).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    nodes = []
    for node in graph.node:
        is_known = constant.issuperset(name for name in node.input if name)
        constant.update(node.output if is_known else ())
        after = []
        for i, name in enumerate(node.output):
            if name not in real or is_known:
                continue
            node.output[i] = f"{name}__exact"
            after += [
                helper.make_node("Cast", [f"{name}__exact"], [f"{name}__half"], to=10),
                helper.make_node("Cast", [f"{name}__half"], [name], to=1),
            ]
        nodes += [node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return model.SerializeToString()


def some_inputs(path: Path) -> dict[str, np.ndarray]:
    """Inputs for a graph of which nothing else is known: of sizes that ONNX Runtime takes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    problem = None
    for size in (16, 224, 64, 32, 1, 128, 256, 80, 320, 640, 512, 1000, 16000):
        given = {x.name: _guessed(x, size) for x in session.get_inputs()}
        try:
            session.run(None, given)
            return given
        except Exception as error:
            problem = error
    raise problem


def _guessed(feature, size: int) -> np.ndarray:
    """Normal numbers; whole ones from 0 to 3. The first size that is left open is 1."""
    open_ = [i for i, s in enumerate(feature.shape) if not isinstance(s, int) or s < 1]
    shape = [s if i not in open_ else (1 if i == 0 else size) for i, s in enumerate(feature.shape)]
    random = np.random.default_rng(len(shape))
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    kinds |= {"tensor(float16)": np.float16, "tensor(bool)": bool}
    kinds |= {f"tensor({k})": np.dtype(k) for k in ("int64", "int32", "int8", "uint8", "int16")}
    dtype = np.dtype(kinds[feature.type])
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 4, shape).astype(dtype)
