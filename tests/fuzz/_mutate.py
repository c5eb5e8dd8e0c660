"""Damage for a `.mlpackage`, chosen by a seeded generator.

Structural: fields anywhere in the model's protobuf get other values, elements are dropped, doubled,
exchanged or taken from elsewhere in the model. Types: a value gets another shape or dtype wherever
the package says it, so that only the ops can notice. Bytewise: bits flipped, files cut, parts of
another file put in. And files that are not what they should be: links that lead outside, pipes,
folders.
"""

from collections.abc import Callable, Iterator
import json
from math import prod
import os
from pathlib import Path
from random import Random
import struct

from ane_book.mil.reader import proto
from google.protobuf.descriptor import FieldDescriptor as Field

__all__ = ["damage"]

INTEGERS = [0, 1, -1, 2, 3, 7, 64, 255, 256, 65536, 2**24, 2**31 - 1, -(2**31), 2**32, 2**40,
            2**60, 2**63 - 1, -(2**63), 2**64 - 1]  # fmt: skip
FLOATS = [0.0, -1.0, 0.5, 1e-30, 1e30, 3e38, -3e38, float("inf"), float("nan")]
STRINGS = ["", "x", "main", "fp16", "int4", "valid", "custom", "../../outside", "a\x00b", "é" * 300,
           "@model_path/weights/../../../../outside", "/etc/hostname"]  # fmt: skip

#: What a manifest may say that the model's file is.
PATHS = ["", ".", "..", "/", "../" * 9 + "etc/hostname", "com.apple.CoreML", "a\x00b", "x" * 5000,
         "com.apple.CoreML/weights/weight.bin", 7, None, [], {}]  # fmt: skip

#: Kinds of message to pick one of; the empty list stands for all of them.
DEEP = [
    [], ["Binding"], ["RepeatedInts", "RepeatedFloats", "RepeatedBools", "RepeatedStrings"],
    ["RepeatedInts", "RepeatedBytes"], ["Operation"], ["Dimension", "ConstantDimension"],
]  # fmt: skip

#: DataType of the program -> dtype of a blob's record, and bits of an element
CODES = {10: (1, 16), 11: (2, 32), 21: (4, 8), 22: (6, 16), 23: (14, 32), 31: (3, 8), 32: (7, 16),
         35: (11, 4), 25: (8, 4), 37: (9, 1)}  # fmt: skip

RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1), Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}  # fmt: skip


def damage(package: Path, other: Path, outside: Path, rng: Random) -> str:
    """Damage a package in place; returns what was done.

    other: another sound package, to take parts from. outside: a file that no package may read.
    """
    kinds = {_fields: 60, _types: 22, _bytes: 13, _manifest: 3, _files: 2}
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    return kind(package, other, outside, rng)


def _model(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "model.mlmodel"


# --- fields of the protobuf ---------------------------------------------------------------------


def _fields(package: Path, other: Path, outside: Path, rng: Random) -> str:
    model = proto("Model_pb2").Model()
    model.ParseFromString(_model(package).read_bytes())
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        program = rng.random() < 0.9  # the description is as long as the program, and tells less
        messages = list(_messages(model.mlProgram if program else model.description))
        messages = [message for message in messages if message.DESCRIPTOR.fields]
        chosen = rng.choice(DEEP)  # what is wrong in its value only gets furthest
        message = rng.choice([m for m in messages if m.DESCRIPTOR.name in chosen] or messages)
        fields = [field for field, _ in message.ListFields()]
        field = rng.choice(fields or list(message.DESCRIPTOR.fields))
        done.append(
            f"{message.DESCRIPTOR.name}.{field.name}: {_change(message, field, rng, messages)}"
        )
    _model(package).write_bytes(model.SerializeToString())
    return "; ".join(done)


def _is_map(field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _messages(message) -> Iterator:
    """A message and all within it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if _is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in sorted(value):
                    yield from _messages(value[key])
        elif field.is_repeated:
            for element in value:
                yield from _messages(element)
        else:
            yield from _messages(value)


def _change(message, field, rng: Random, messages: list) -> str:
    """Change one field of a message."""
    value = getattr(message, field.name)
    if _is_map(field):
        return _change_map(value, rng)
    if field.is_repeated:
        return _change_elements(value, field, rng, messages)
    if field.message_type is not None:
        return _change_message(value, rng, messages)
    new = _scalar(field, value, rng, messages)
    setattr(message, field.name, new)
    return f"{value!r:.40} -> {new!r:.40}"


def _change_map(entries, rng: Random) -> str:
    keys = sorted(entries)
    if not keys:
        return "nothing"
    key = rng.choice(keys)
    match rng.randrange(4):
        case 0:
            del entries[key]
            return f"drop {key!r}"
        case 1 | 2 if hasattr(entries[key], "CopyFrom"):
            target = rng.choice([*keys, "x", "y", "_out", "axis", "shape", "a=1, b"])
            entries[target].CopyFrom(entries[key])
            return f"copy {key!r} to {target!r}"
        case _:
            first, second = entries[key], entries[rng.choice(keys)]
            if hasattr(first, "CopyFrom"):
                kept = type(first)()
                kept.CopyFrom(first)
                first.CopyFrom(second)
                second.CopyFrom(kept)
            return f"exchange {key!r} with another"


def _change_elements(elements, field, rng: Random, messages: list) -> str:
    kind = rng.choice(["drop", "double", "exchange", "change", "many", "clear"])
    plain = field.message_type is None
    if not len(elements):
        if plain:
            elements.append(_scalar(field, None, rng, messages))
        else:
            elements.add()
        return "add one"
    at, to = rng.randrange(len(elements)), rng.randrange(len(elements))
    if kind == "drop":
        del elements[at]
    elif kind == "clear":
        del elements[rng.randrange(len(elements)) :]
    elif kind in ("double", "many"):
        for _ in range(1 if kind == "double" else rng.choice([2, 50])):
            elements.append(elements[at]) if plain else elements.add().CopyFrom(elements[at])
    elif kind == "change" and plain:
        elements[at] = _scalar(field, elements[at], rng, messages)
    elif kind == "change":
        return f"change {at}: {_change_message(elements[at], rng, messages)}"
    elif plain:
        elements[at], elements[to] = elements[to], elements[at]
    else:
        kept = type(elements[at])()
        kept.CopyFrom(elements[at])
        elements[at].CopyFrom(elements[to])
        elements[to].CopyFrom(kept)
    return f"{kind} {at} of {len(elements)}"


def _change_message(message, rng: Random, messages: list) -> str:
    alike = [other for other in messages if other.DESCRIPTOR is message.DESCRIPTOR]
    if alike and rng.random() < 0.7:
        copy = type(message)()  # the other may lie within this one
        copy.CopyFrom(rng.choice(alike))
        message.CopyFrom(copy)
        return "become another"
    if rng.random() < 0.3:
        _nest(message, rng.choice([3, 30, 90]))
        return "nest"
    message.Clear()
    return "clear"


def _nest(message, depth: int) -> None:
    """Put messages of a kind into each other, as deep as a parser may go."""
    for _ in range(depth):
        inside = [f for f in message.DESCRIPTOR.fields if f.message_type and not _is_map(f)]
        if not inside:
            return
        value = getattr(message, inside[-1].name)
        if inside[-1].is_repeated:
            value.add()
            message = value[-1]
        else:
            value.SetInParent()
            message = value


def _scalar(field, old, rng: Random, messages: list):
    """A value of a scalar field."""
    if field.cpp_type in RANGES:
        low, high = RANGES[field.cpp_type]
        near = (
            [] if old is None else [old + 1, old - 1, old * 2, -old, old ^ (1 << rng.randrange(20))]
        )
        return rng.choice([n for n in [*INTEGERS, *near, *near] if low <= n <= high])
    if field.cpp_type == Field.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values] + [99])
    if field.cpp_type in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
        return rng.choice([*FLOATS, -(old or 1.0)])
    if field.cpp_type == Field.CPPTYPE_BOOL:
        return not old
    if field.type == Field.TYPE_BYTES:
        return _mangle(old or b"\0", b"\xff" * 8, rng)
    if rng.random() < 0.2:
        return rng.choice(STRINGS)
    return _some_string(rng, messages)


def _some_string(rng: Random, messages: list) -> str:
    """A string from elsewhere in the model: a name, an op's type, a word."""
    found = [
        value
        for message in rng.sample(messages, min(40, len(messages)))
        for field, value in message.ListFields()
        if field.type == Field.TYPE_STRING and not field.is_repeated
    ]
    return rng.choice(found or STRINGS)


# --- types --------------------------------------------------------------------------------------


def _types(package: Path, other: Path, outside: Path, rng: Random) -> str:
    """Give a value another type, everywhere alike: the op's output, its value, its record."""
    model = proto("Model_pb2").Model()
    model.ParseFromString(_model(package).read_bytes())
    operations = [m for m in _messages(model.mlProgram) if m.DESCRIPTOR.name == "Operation"]
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
        for argument in operation.inputs.values():
            for binding in argument.arguments:
                for given in model.mlProgram.functions["main"].inputs:
                    if given.name == binding.name and given.type.HasField("tensorType"):
                        given.type.CopyFrom(output.type)
    _model(package).write_bytes(model.SerializeToString())
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


# --- bytes ----------------------------------------------------------------------------------------


def _bytes(package: Path, other: Path, outside: Path, rng: Random) -> str:
    files = sorted(file for file in package.rglob("*") if file.is_file())
    file = rng.choice(files)
    donors = sorted(donor for donor in other.rglob("*") if donor.name == file.name)
    data, donor = file.read_bytes(), (donors[0] if donors else _model(other)).read_bytes()
    if file.suffix == ".bin" and rng.random() < 0.7:  # a record's header: mostly data otherwise
        at = 64 * rng.randrange(len(data) // 64)
        data = data[:at] + _mangle(data[at : at + 32], donor[:32], rng) + data[at + 32 :]
    else:
        data = _mangle(data, donor, rng)
    file.write_bytes(data)
    return f"bytes of {file.name}"


def _mangle(data: bytes, donor: bytes, rng: Random) -> bytes:
    """The bytes with bits flipped, or parts cut, doubled or replaced."""
    if not data:
        return donor[:8]
    start = rng.randrange(len(data))
    length = min(len(data) - start, rng.choice([1, 4, 8, 64, len(data)]))
    match rng.randrange(5):
        case 0:
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 4, 16])):
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return data[:start]
        case 2:
            return data[:start] + data[start + length :]
        case 3:
            return data[: start + length] + data[start:]
        case _:
            taken = rng.randrange(len(donor))
            return data[:start] + donor[taken : taken + length] + data[start + length :]


# --- manifest and files --------------------------------------------------------------------------


def _manifest(package: Path, other: Path, outside: Path, rng: Random) -> str:
    file = package / "Manifest.json"
    manifest = json.loads(file.read_text())
    entries = manifest["itemInfoEntries"]
    root = manifest["rootModelIdentifier"]
    path = rng.choice([*PATHS, str(outside)])
    values = [path, None, [], {}, 1, "x", {"path": path}, [[[]]] * 9]
    match rng.randrange(4):
        case 0:
            entries[root]["path"] = path
        case 1:
            entries[root] = rng.choice(values)
        case 2:
            manifest[rng.choice(["itemInfoEntries", "rootModelIdentifier"])] = rng.choice(values)
        case _:
            file.write_text("[" * rng.choice([10, 100_000]))
            return "deep Manifest.json"
    file.write_text(json.dumps(manifest))
    return f"Manifest.json: {path!r:.60}"


def _files(package: Path, other: Path, outside: Path, rng: Random) -> str:
    """A file or folder of the package becomes something else."""
    inside = sorted(package.rglob("*"))
    path = rng.choice(inside)
    moved = package.parent / "moved"
    path.rename(moved)
    makers: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "an empty file": path.touch,
        "a large file": lambda: (path.touch(), os.truncate(path, 2**42)),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a link to a file outside": lambda: path.symlink_to(outside),
        "a link to its like outside": lambda: path.symlink_to(moved),
        "a link to a device": lambda: path.symlink_to("/dev/zero"),
    }
    name = rng.choice(sorted(makers))
    makers[name]()
    return f"{path.name} is {name}"
