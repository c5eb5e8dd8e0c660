"""Damage for a `.mlpackage`, chosen by a seeded generator.

Structural: fields anywhere in the model's protobuf get other values, elements are dropped, doubled,
exchanged or taken from elsewhere in the model. Types: a value gets another shape or dtype, or a
size becomes another, wherever the package says it, so that only the ops can notice
(`_mutate_types.py`). Bytewise: bits flipped, files cut, parts of another file put in. And files
that are not what they should be: links that lead outside, pipes, folders (`_mutate_files.py`).
"""

from pathlib import Path
from random import Random

from _mutate_files import bytewise, files, mangle, manifest
from _mutate_types import is_map, messages, read, sizes, types, write
from google.protobuf.descriptor import FieldDescriptor as Field

INTEGERS = [0, 1, -1, 2, 3, 7, 64, 255, 256, 65536, 2**24, 2**31 - 1, -(2**31), 2**32, 2**40,
            2**60, 2**63 - 1, -(2**63), 2**64 - 1]  # fmt: skip
FLOATS = [0.0, -1.0, 0.5, 1e-30, 1e30, 3e38, -3e38, float("inf"), float("nan")]
STRINGS = ["", "x", "main", "fp16", "int4", "valid", "custom", "../../outside", "a\x00b", "é" * 300,
           "@model_path/weights/../../../../outside", "/etc/hostname"]  # fmt: skip

#: Kinds of message to pick one of; the empty list stands for all of them.
DEEP = [
    [], ["Binding"], ["RepeatedInts", "RepeatedFloats", "RepeatedBools", "RepeatedStrings"],
    ["RepeatedInts", "RepeatedBytes"], ["Operation"], ["Dimension", "ConstantDimension"],
]  # fmt: skip

RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1), Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}  # fmt: skip


def damage(package: Path, other: Path, outside: Path, rng: Random) -> str:
    """Damage a package in place; returns what was done.

    other: another sound package, to take parts from. outside: a file that no package may read.
    """
    kinds = {_fields: 56, types: 20, sizes: 8, bytewise: 11, manifest: 3, files: 2}
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    return kind(package, other, outside, rng)


def _fields(package: Path, other: Path, outside: Path, rng: Random) -> str:
    model = read(package)
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        program = rng.random() < 0.9  # the description is as long as the program, and tells less
        found = list(messages(model.mlProgram if program else model.description))
        found = [message for message in found if message.DESCRIPTOR.fields]
        chosen = rng.choice(DEEP)  # what is wrong in its value only gets furthest
        message = rng.choice([m for m in found if m.DESCRIPTOR.name in chosen] or found)
        fields = [field for field, _ in message.ListFields()]
        field = rng.choice(fields or list(message.DESCRIPTOR.fields))
        done.append(
            f"{message.DESCRIPTOR.name}.{field.name}: {_change(message, field, rng, found)}"
        )
    write(package, model)
    return "; ".join(done)


def _change(message, field, rng: Random, found: list) -> str:
    """Change one field of a message."""
    value = getattr(message, field.name)
    if is_map(field):
        return _change_map(value, rng)
    if field.is_repeated:
        return _change_elements(value, field, rng, found)
    if field.message_type is not None:
        return _change_message(value, rng, found)
    new = _scalar(field, value, rng, found)
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


def _change_elements(elements, field, rng: Random, found: list) -> str:
    kind = rng.choice(["drop", "double", "exchange", "change", "many", "clear"])
    plain = field.message_type is None
    if not len(elements):
        if plain:
            elements.append(_scalar(field, None, rng, found))
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
        elements[at] = _scalar(field, elements[at], rng, found)
    elif kind == "change":
        return f"change {at}: {_change_message(elements[at], rng, found)}"
    elif plain:
        elements[at], elements[to] = elements[to], elements[at]
    else:
        kept = type(elements[at])()
        kept.CopyFrom(elements[at])
        elements[at].CopyFrom(elements[to])
        elements[to].CopyFrom(kept)
    return f"{kind} {at} of {len(elements)}"


def _change_message(message, rng: Random, found: list) -> str:
    alike = [other for other in found if other.DESCRIPTOR is message.DESCRIPTOR]
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
    """Put found of a kind into each other, as deep as a parser may go."""
    for _ in range(depth):
        inside = [f for f in message.DESCRIPTOR.fields if f.message_type and not is_map(f)]
        if not inside:
            return
        value = getattr(message, inside[-1].name)
        if inside[-1].is_repeated:
            value.add()
            message = value[-1]
        else:
            value.SetInParent()
            message = value


def _scalar(field, old, rng: Random, found: list):
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
        return mangle(old or b"\0", b"\xff" * 8, rng)
    if rng.random() < 0.2:
        return rng.choice(STRINGS)
    return _some_string(rng, found)


def _some_string(rng: Random, found: list) -> str:
    """A string from elsewhere in the model: a name, an op's type, a word."""
    strings = [
        value
        for message in rng.sample(found, min(40, len(found)))
        for field, value in message.ListFields()
        if field.type == Field.TYPE_STRING and not field.is_repeated
    ]
    return rng.choice(strings or STRINGS)
