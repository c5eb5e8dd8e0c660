"""Make plausible inputs for an ONNX graph.

Purely random numbers test little: ids would lie outside of the embedding, and masks would hide
arbitrary tokens. So an input's values depend on the nodes that read it, and on its name.
"""

from collections import defaultdict
from collections.abc import Mapping

from mlprogram import MLProgram
from mlprogram.errors import InvalidInput
from mlprogram.onnx.file import attribute, constants_of
import numpy as np
from onnx import GraphProto, NodeProto, helper

#: Operators that pass integers on unchanged to the operator that uses them as indices.
HANDED_ON = {
    "Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
}  # fmt: skip
STORED = {"Cast", "DequantizeLinear", "Identity"}  # of an embedding that is stored otherwise
AUDIO = ("audio", "sound", "speech", "wav")
IMAGE = ("image", "img", "pixel")


def random_inputs(graph: GraphProto, program: MLProgram, seed: int) -> dict[str, np.ndarray]:
    """`plausible_inputs` for a converted program, whose inputs are the graph's in order."""
    return plausible_inputs(graph, _features(graph, program), seed)


def plausible_inputs(
    graph: GraphProto, features: Mapping[str, tuple[np.dtype, tuple[int, ...]]], seed: int
) -> dict[str, np.ndarray]:
    """Make an array for inputs of an onnx.GraphProto, by name; features: their dtypes and shapes.

    Masks show the first three quarters of their tokens; positions count up; ids lie within the
    table that they index, and other integers are 0 or 1; images lie in [0, 1] or are bytes, audio
    is normal times 0.1, and other real numbers are normal.
    """
    generator, limits = np.random.default_rng(seed), _limits(graph)
    return {
        name: np.asarray(_made(name, dtype, shape, limits.get(name), generator), dtype)
        for name, (dtype, shape) in features.items()
    }


def given_inputs(
    graph: GraphProto, program: MLProgram, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Convert the caller's arrays to the graph's types and order. Raises InvalidInput."""
    cast = {}
    for name, (dtype, shape) in _features(graph, program).items():
        if name not in arrays:
            there = ", ".join(arrays) or "nothing"
            raise InvalidInput(f"no array is given for input {name!r}; there are: {there}")
        if arrays[name].size != np.prod(shape, dtype=int):
            raise InvalidInput(
                f"input {name!r} has shape {shape}, and what is given {arrays[name].shape}"
            )
        cast[name] = np.asarray(arrays[name], dtype).reshape(shape)
    return cast


def _features(
    graph: GraphProto, program: MLProgram
) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """The dtype and shape of each input of the graph, in the order of the program's inputs."""
    known = {tensor.name for tensor in graph.initializer}
    inputs = [feature for feature in graph.input if feature.name not in known]
    features = {}
    for feature, described in zip(inputs, program.features.values(), strict=True):
        tensor = feature.type.tensor_type
        single = tensor.HasField("shape") and not tensor.shape.dim  # which Core ML gives a size
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        features[feature.name] = dtype, () if single else described.shape
    return features


def _limits(graph: GraphProto) -> dict[str, int]:
    """For each input that is used as indices, the rows of the smallest table that it indexes."""
    sizes = {name: tensor.dims for name, tensor in constants_of(graph).items()}
    readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
    for node in graph.node:
        for at, name in enumerate(node.input):
            readers[name].append((node, at))
        if node.op_type in STORED and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
    limits = {}
    for feature in graph.input:
        rows, todo = [], [feature.name]
        while todo:
            for node, at in readers[todo.pop()]:
                if node.op_type == "Gather" and at == 1 and node.input[0] in sizes:
                    rows.append(sizes[node.input[0]][attribute(node, "axis", 0)])
                elif node.op_type in HANDED_ON and at == 0:
                    todo.append(node.output[0])
        if rows:
            limits[feature.name] = max(1, min(rows))
    return limits


def _made(
    name: str, dtype: np.dtype, shape: tuple[int, ...], rows: int | None,
    random: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    plain, length = name.lower(), shape[-1] if shape else 1
    if "mask" in plain:
        return np.broadcast_to(np.arange(length) < length - length // 4, shape).astype(dtype)
    if dtype.kind not in "iub":
        picture = len(shape) == 4 and {shape[1], shape[3]} & {1, 3}
        if picture or any(word in plain for word in IMAGE):
            return random.random(shape).astype(dtype)
        size = 0.1 if any(word in plain for word in AUDIO) else 1.0
        return (size * random.standard_normal(shape)).astype(dtype)
    if "position" in plain:
        return np.broadcast_to(np.arange(length) % (rows or length), shape).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind != "b" and len(shape) > 2:
        known = np.iinfo(dtype)
        return random.integers(known.min, known.max, shape, endpoint=True).astype(dtype)
    return random.integers(0, rows or 2, shape).astype(dtype)
