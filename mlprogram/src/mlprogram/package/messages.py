"""Types and values of MIL as protobuf messages, equal to those that coremltools makes.

Only the modules of the format itself are loaded: importing coremltools takes seconds, and stamping
a block that was lowered before needs nothing else of it.
"""

from mlprogram.package.files import proto
from mlprogram.package.values import DTYPES
import numpy as np

CODES = {dtype: code for code, dtype in DTYPES.items()}

#: kind and size of a numpy dtype -> MIL's data type, and the field of a tensor that has its values
FIELDS = {
    "b1": ("bool", "bools"), "i4": ("int32", "ints"), "f4": ("fp32", "floats"),
    "f2": ("fp16", "bytes"), "U": ("string", "strings"),
}  # fmt: skip


def value_type(dtype: str, shape: tuple[int | None, ...]):
    """A MIL ValueType of a tensor; `dtype` in MIL's spelling, such as "fp16" or "uint4"; a size of
    None is flexible."""
    made = proto("MIL_pb2").ValueType()
    tensor = made.tensorType
    tensor.dataType, tensor.rank = CODES[dtype], len(shape)
    for size in shape:
        dimension = tensor.dimensions.add()
        if size is None:
            dimension.unknown.SetInParent()
        else:
            dimension.constant.size = size
    return made


def immediate(value):
    """A MIL Value that holds a text, a number or an array of them: bool, int32, fp16 or fp32."""
    array = np.asarray(value)
    kind = array.dtype.kind
    dtype, field = FIELDS[kind if kind == "U" else f"{kind}{array.itemsize}"]
    made = proto("MIL_pb2").Value(type=value_type(dtype, array.shape))
    tensor = made.immediateValue.tensor
    if field == "bytes":
        tensor.bytes.values = array.tobytes()
    else:
        getattr(tensor, field).values.extend(array.reshape(-1).tolist())
    return made


def file_value(dtype: str, shape: tuple[int, ...], file: str, offset: int):
    """A MIL Value whose bytes are the blob of a weight file with its record at `offset`."""
    made = proto("MIL_pb2").Value(type=value_type(dtype, shape))
    made.blobFileValue.fileName, made.blobFileValue.offset = file, offset
    return made
