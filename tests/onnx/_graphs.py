"""Small graphs of the kinds that are exported: vision, text, audio; and how they are compared."""

from pathlib import Path

from _verdict import as_core_ml, oracle
from mlprogram import MLProgram
from mlprogram.ane import faults, laws
from mlprogram.arithmetic import Semantics
from mlprogram.onnx.graph import convert_graph
import numpy as np
import onnx
from onnx import helper, numpy_helper

#: The faults that no package of this project may have, but for what a graph itself asks for: a
#: convolution by a weight that it is given, integers of its own beyond 2^24, a mask of -inf that it
#: selects and then looks for.
ASKED = {"conv-weight-computed", "integers-beyond", "sentinel-selected"}
KNOWN = {id: one for id, one in faults.load().items() if id not in ASKED}


class Maker:
    """Builds a graph node by node; `make("Relu", x)` gives the name of the result."""

    def __init__(self, seed: int = 0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants, self.inputs = [], [], []

    def input(self, name: str, shape, dtype=np.float32) -> str:
        code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, code, shape))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape, np.float32) / shape[-1] ** 0.5)

    def constant(self, value) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def __call__(self, op: str, *inputs: str, count: int = 1, **attributes):
        outputs = [f"{op}_{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op, inputs, outputs, **attributes))
        return outputs[0] if count == 1 else outputs

    def save(self, path: Path, outputs: list[str], opset: int = 17, **how) -> Path:
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "made", self.inputs, results, self.constants)
        ids = [helper.make_opsetid("", opset)]
        onnx.save(helper.make_model(graph, opset_imports=ids, ir_version=8), path, **how)
        return path


def hold_to_onnxruntime(
    path: Path,
    given: dict,
    tolerance: float = 1e-4,
    precision: str = "fp32",
    fused: bool = True,
    semantics: Semantics | None = None,
) -> MLProgram:
    """Convert, run by the executor, and compare with ONNX Runtime by the largest value.

    What is converted has none of the known faults of coremltools and Core ML. fused: whether ONNX
    Runtime may join operators, which rounds otherwise where they quantise.
    """
    wanted = oracle(path, given, plain=not fused)
    shapes = {name: array.shape for name, array in given.items()}
    package = convert_graph(path, path.with_suffix(".mlpackage"), precision, shapes)
    assert not laws.check(package, KNOWN).findings
    program = MLProgram(package, precision=precision, semantics=semantics)
    arrays = map(as_core_ml, given.values())
    found = program.predict(dict(zip(program.inputs, arrays, strict=True)))
    for (name, got), want in zip(found.items(), wanted, strict=True):
        assert got.shape == (want.shape or (1,))
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max(), name
    return program
