"""Packages written field by field, so that a test can say in them whatever it likes.

coremltools would refuse to make most of what `test_hostile.py` needs.
"""

import json
from pathlib import Path
import struct

from _patience import guarded
from mlprogram import MLProgram
from mlprogram.errors import InvalidPackage
from mlprogram.package.files import proto
import numpy as np
import pytest

MODEL = Path("Data/com.apple.CoreML/model.mlmodel")
WEIGHTS = Path("Data/com.apple.CoreML/weights/weight.bin")

CODES = {"bool": 1, "string": 2, "fp16": 10, "fp32": 11, "int8": 21, "int16": 22, "int32": 23,
         "uint8": 31, "uint16": 32, "uint4": 35, "uint1": 37}  # fmt: skip
NAMES = {"float16": "fp16", "float32": "fp32"}
FIELDS = {"f": "floats", "i": "ints", "b": "bools", "U": "strings"}


def typed(dtype, *shape, kind="tensor"):
    """A MIL type; None is a flexible size."""
    message = proto("MIL_pb2").ValueType()
    if kind == "state":
        message.stateType.wrappedType.CopyFrom(typed(dtype, *shape))
        return message
    message.tensorType.dataType, message.tensorType.rank = CODES[dtype], len(shape)
    for size in shape:
        dimension = message.tensorType.dimensions.add()
        if size is None:
            dimension.unknown.SetInParent()
        else:
            dimension.constant.size = size
    return message


def const(value, dtype=None, shape=None):
    """An immediate value; `dtype` and `shape` say otherwise what it is declared to be."""
    array = np.array(value)
    if isinstance(value, float | int | list) and array.dtype.kind in "fi":
        array = array.astype({"f": np.float32, "i": np.int32}[array.dtype.kind])
    message = proto("MIL_pb2").Value()
    found = "string" if array.dtype.kind == "U" else NAMES.get(str(array.dtype), str(array.dtype))
    shape = array.shape if shape is None else shape
    message.type.CopyFrom(typed(dtype or found, *shape))
    values = getattr(message.immediateValue.tensor, FIELDS[array.dtype.kind]).values
    values.extend(array.reshape(-1).tolist())
    return message


def blob(type_, offset, file="@model_path/weights/weight.bin"):
    """A value in the weight file."""
    message = proto("MIL_pb2").Value()
    message.type.CopyFrom(type_)
    message.blobFileValue.fileName, message.blobFileValue.offset = file, offset
    return message


def op(kind, outputs, blocks=(), **inputs):
    """An op; an input is a name, a Value, or a list of these. outputs: name -> type."""
    message = proto("MIL_pb2").Operation(type=kind)
    for key, items in inputs.items():
        for item in items if isinstance(items, list) else [items]:
            if kind == "const":
                message.attributes[key].CopyFrom(item)
            elif isinstance(item, str):
                message.inputs[key].arguments.add().name = item
            else:
                message.inputs[key].arguments.add().value.CopyFrom(item)
    for name, type_ in outputs.items():
        message.outputs.add(name=name, type=type_)
    message.blocks.extend(blocks)
    return message


X = typed("fp32", 2, 3)
ADD = op("add", {"y": X}, x="x", y="x")


def block(operations, outputs, inputs=None):
    message = proto("MIL_pb2").Block(outputs=outputs)
    message.operations.extend(operations)
    for name, type_ in (inputs or {}).items():
        message.inputs.add(name=name, type=type_)
    return message


def write(path, operations, outputs=("y",), inputs=None, weights=None):
    """A package with one function; inputs: name -> type, weights: a list of (code, bytes)."""
    model = proto("Model_pb2").Model(specificationVersion=9)
    function = model.mlProgram.functions["main"]
    function.opset = "CoreML8"
    inputs = {"x": typed("fp32", 2, 3)} if inputs is None else inputs
    for name, type_ in inputs.items():
        function.inputs.add(name=name, type=type_)
    function.block_specializations["CoreML8"].CopyFrom(block(operations, outputs))
    (path / WEIGHTS).parent.mkdir(parents=True)
    (path / MODEL).write_bytes(model.SerializeToString())
    item = {"path": "com.apple.CoreML/model.mlmodel"}
    manifest = {"itemInfoEntries": {"root": item}, "rootModelIdentifier": "root"}
    (path / "Manifest.json").write_text(json.dumps(manifest))
    data = struct.pack("<II56x", len(weights or []), 2)
    for code, content in weights or []:
        start = len(data) + 64
        data += struct.pack("<IIQQQ32x", 0xDEADBEEF, code, len(content), start, 0)
        data += content + bytes(-len(content) % 64)
    (path / WEIGHTS).write_bytes(data)
    return path


def edit(path, change):
    """Change the protobuf of a package."""
    model = proto("Model_pb2").Model()
    model.ParseFromString((path / MODEL).read_bytes())
    change(model)
    (path / MODEL).write_bytes(model.SerializeToString())
    return path


def refused(path, match, kind=InvalidPackage, inputs=None):
    """The package is refused, and work on it does not hang, with every shortcut and with none."""
    inputs = {"x": np.ones((2, 3), np.float32)} if inputs is None else inputs
    for optimize in (True, False):
        with guarded(), pytest.raises(kind, match=match):
            run(path, inputs, optimize)


def run(path, inputs=None, optimize=True):
    """Open a package and run its function, by default on ones."""
    program = MLProgram(path, optimize=optimize)
    inputs = {"x": np.ones((2, 3), np.float32)} if inputs is None else inputs
    return program.predict(inputs, program.make_state())
