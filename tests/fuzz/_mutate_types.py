"""Damage to what a model says of its values: types and sizes, alike wherever they are said."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from random import Random
import struct

from _mutate_files import model_file
from mlprogram.package.files import proto

#: DataType of the program -> dtype of a blob's record, and bits of an element
CODES = {10: (1, 16), 11: (2, 32), 21: (4, 8), 22: (6, 16), 23: (14, 32), 31: (3, 8), 32: (7, 16),
         35: (11, 4), 25: (8, 4), 37: (9, 1)}  # fmt: skip


def read(package: Path):
    """The model of a package, as a protobuf message."""
    model = proto("Model_pb2").Model()
    model.ParseFromString(model_file(package).read_bytes())
    return model


def write(package: Path, model) -> None:
    """Write the model back, equal ones in equal bytes."""
    model_file(package).write_bytes(model.SerializeToString(deterministic=True))


def is_map(field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def messages(message) -> Iterator:
    """A message and all within it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in sorted(value):
                    yield from messages(value[key])
        elif field.is_repeated:
            for element in value:
                yield from messages(element)
        else:
            yield from messages(value)


def types(package: Path, other: Path, outside: Path, rng: Random) -> str:
    """Give a value another type, everywhere alike: the op's output, its value, its record."""
    model = read(package)
    operations = [m for m in messages(model.mlProgram) if m.DESCRIPTOR.name == "Operation"]
    operation = rng.choice([o for o in operations if o.outputs])
    output = operation.outputs[0]
    if output.type.WhichOneof("type") != "tensorType":
        return "nothing"
    tensor = output.type.tensorType
    before = [d.constant.size for d in tensor.dimensions]
    shape = _another_shape(before, rng)
    if rng.random() < 0.4:
        tensor.dataType = rng.choice(sorted(CODES))
    del tensor.dimensions[:]
    for size in shape:
        tensor.dimensions.add().constant.size = size
    tensor.rank = len(shape)
    if operation.type == "const":
        value = operation.attributes["val"]
        value.type.CopyFrom(output.type)
        if value.WhichOneof("value") == "blobFileValue":
            _write_record(package, value.blobFileValue, tensor.dataType, prod(shape))
    elif rng.random() < 0.5:  # whoever takes the function's inputs by their declared types
        used = {b.name for argument in operation.inputs.values() for b in argument.arguments}
        for _, function in sorted(model.mlProgram.functions.items()):
            for given in function.inputs:
                if given.name in used and given.type.HasField("tensorType"):
                    given.type.CopyFrom(output.type)
    write(package, model)
    return f"{operation.type} {output.name!r}: {before} -> {shape}, dtype code {tensor.dataType}"


def _another_shape(shape: list[int], rng: Random) -> list[int]:
    """Another order, another rank, a factor moved from one axis to the next, or one axis cut."""
    shape = list(shape)
    if not shape:
        return [1]
    at, to = rng.randrange(len(shape)), rng.randrange(len(shape))
    match rng.randrange(5):
        case 0:
            rng.shuffle(shape)
        case 1:
            shape.insert(at, 1)
        case 2 if 1 in shape:
            shape.remove(1)
        case 3:
            factor = rng.choice([f for f in (2, 3, 4, 8, 1) if shape[at] % f == 0])
            shape[at] //= factor
            shape[to] *= factor
        case _:
            shape[at] = rng.choice([0, 1, max(shape[at] - 1, 0), shape[at] // 2, 2 * shape[at]])
    return shape


def _write_record(package: Path, blob, code: int, count: int) -> None:
    """Make a blob's record say what the program now declares."""
    file = package / "Data/com.apple.CoreML/weights/weight.bin"
    record, bits = CODES[code]
    with file.open("r+b") as stream:
        stream.seek(blob.offset)
        stream.write(struct.pack("<IIQ", 0xDEADBEEF, record, (count * bits + 7) // 8))


def sizes(package: Path, other: Path, outside: Path, rng: Random) -> str:
    """One size becomes another wherever it stands: in types, and perhaps in constants as well."""
    model = read(package)
    everything = list(messages(model))
    kept: set[int] = set()
    if rng.random() < 0.7:  # constants keep their types, and what is computed becomes a lie
        operations = [m for m in everything if m.DESCRIPTOR.name == "Operation"]
        kept = {id(m) for o in operations if o.type == "const" for m in messages(o)}
    dimensions = [m for m in everything if m.DESCRIPTOR.name == "ConstantDimension"]
    old = rng.choice(sorted({dimension.size for dimension in dimensions}))
    new = rng.choice([0, 1, max(old - 1, 0), old + 1, old // 2, 2 * old, 3 * old, 4096])
    for dimension in dimensions:
        if dimension.size == old and id(dimension) not in kept:
            dimension.size = new
    for message in everything:
        name = message.DESCRIPTOR.name
        if name == "ArrayFeatureType" or (name == "RepeatedInts" and not kept):
            values = message.shape if name == "ArrayFeatureType" else message.values
            values[:] = [new if value == old else value for value in values]
    write(package, model)
    return f"{old} -> {new}"
