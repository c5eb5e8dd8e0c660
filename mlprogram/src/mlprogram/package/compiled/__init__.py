"""Read and write compiled models: the folder `.mlmodelc` into which Core ML compiles a package.

    model.mil           the program as text (`reader.py`)
    coremldata.bin      the type of model and its description
    weights/            the weight files of the package, as they were
    model0/, model1/    the parts of a pipeline, each such a folder, instead of model.mil

`coremldata.bin` has a header that begins with the number that `Model.proto` gives to the type of
model (502 is an ML Program), and then the package's `ModelDescription`, byte for byte. The layout
is inferred from files of Apple's compiler (versions 3404 to 3600) in public repositories. Without
that file the inputs are described by model.mil, which knows neither images nor defaults.
"""

from pathlib import Path
import struct

from mlprogram.errors import InvalidPackage
from mlprogram.package.compiled.reader import OPSETS, read_text
from mlprogram.package.compiled.writer import write_text
from mlprogram.package.files import inside, proto, read_file

__all__ = ["is_compiled", "read_compiled", "write_compiled"]

PROGRAM, PIPELINE = 502, 202  # field numbers of Model.proto's types
DATA, TEXT = "coremldata.bin", "model.mil"
MAX_DATA, MAX_TEXT = 1 << 26, 1 << 28  # bytes
START = struct.Struct("<I24xQ")  # type of model, length of a word ("generic") that follows
VERSION = struct.Struct("<B31xQ")  # specification version, length of the description that follows


def is_compiled(folder: Path) -> bool:
    """Whether a folder is a compiled model rather than a package."""
    if (folder / "Manifest.json").exists():
        return False
    return folder.suffix == ".mlmodelc" or any((folder / n).exists() for n in (DATA, TEXT))


def read_compiled(folder: Path, path: Path, part: str = "", depth: int = 0):
    """Read a compiled model as a `Model` message.

    part: the folder of a pipeline's part in `folder`. Names of weight files are relative to
    `folder`. Raises InvalidPackage, also for a type of model whose compiled form is unknown.
    """
    model = proto("Model_pb2").Model()
    place, what = folder / part, f"{path}: {part}" if part else f"{path}:"
    kind = PROGRAM
    if (place / DATA).exists():
        kind = _read_data(inside(folder, place / DATA, what), model, what)
    if kind == PROGRAM:
        file = inside(folder, place / TEXT, what)
        try:
            text = read_file(file, MAX_TEXT).decode()
        except UnicodeDecodeError as error:
            raise InvalidPackage(f"{path / part / TEXT}: no text in UTF-8 ({error})") from None
        model.mlProgram.CopyFrom(read_text(text, f"{path / part / TEXT}", part))
        _complete(model)
    elif kind == PIPELINE and not depth:
        parts = sum((folder / f"model{i}").is_dir() for i in range(1000))
        for i in range(parts):
            one = read_compiled(folder, path, f"model{i}/", depth + 1)
            model.pipeline.models.add().CopyFrom(one)
    else:
        field = model.DESCRIPTOR.fields_by_number.get(kind)
        name = field.name if field else f"model of type {kind}"
        raise InvalidPackage(
            f"{what} holds a compiled {name}, not an ML Program; only ML Programs and pipelines "
            "of them are read from compiled models: give the package that it was compiled from"
        )
    return model


def _read_data(file: Path, model, what: str) -> int:
    """Read `coremldata.bin` into the description; returns the type of model."""
    data = read_file(file, MAX_DATA)
    from google.protobuf.message import DecodeError

    try:
        kind, length = START.unpack_from(data)
        if kind not in (PROGRAM, PIPELINE):
            return kind
        version, size = VERSION.unpack_from(data, START.size + length)
        start = START.size + length + VERSION.size
        if size > len(data) - start:
            raise ValueError(f"{size} bytes of a description, and {len(data) - start} follow")
        model.description.ParseFromString(data[start : start + size])
    except (struct.error, ValueError, OverflowError, DecodeError) as error:
        raise InvalidPackage(f"{what} {DATA} is damaged ({error})") from None
    model.specificationVersion = version
    return kind


def _complete(model) -> None:
    """Complete version and flexible inputs from the program, if there is no `coremldata.bin`."""
    opsets = [function.opset for function in model.mlProgram.functions.values()]
    known = [int(o.removeprefix("CoreML")) + 1 for o in opsets if o in OPSETS.values()]
    model.specificationVersion = model.specificationVersion or max(known, default=0)
    if not model.description.ByteSize():
        for name, function in sorted(model.mlProgram.functions.items()):
            description = model.description.functions.add(name=name)
            _describe_shapes(function, description)


def _describe_shapes(function, description) -> None:
    """Default shapes and ranges, from the attribute that Apple's compiler adds to a function."""
    if "FlexibleShapeInformation" not in function.attributes:
        return
    features: dict = {}
    tuples = function.attributes["FlexibleShapeInformation"].immediateValue.tuple.values
    for entry in tuples:
        if len(entry.immediateValue.tuple.values) != 2:
            continue
        name, by_feature = (part.immediateValue for part in entry.immediateValue.tuple.values)
        for pair in by_feature.dictionary.values:
            feature = "".join(pair.key.immediateValue.tensor.strings.values)
            if feature not in features:
                features[feature] = description.input.add(name=feature).type.multiArrayType
            _describe(features[feature], "".join(name.tensor.strings.values), pair.value)


def _describe(array, what: str, value) -> None:
    """Set the default shape or the ranges of an input from one entry of that attribute.

    what: `DefaultShapes`, with a list of sizes, or `RangeDims`, with a list of pairs.
    """
    if what == "DefaultShapes":
        array.shape.extend(value.immediateValue.tensor.ints.values)
    elif what == "RangeDims":
        for pair in value.immediateValue.list.values:
            bounds = pair.immediateValue.tensor.ints.values
            if len(bounds) == 2 and bounds[0] >= 0:
                array.shapeRange.sizeRanges.add(lowerBound=bounds[0], upperBound=bounds[1])


# --- writing --------------------------------------------------------------------------------------


def write_compiled(spec, folder: Path, depth: int = 0) -> list[tuple[object, Path]]:
    """Write a compiled model without its weights; returns each program and its folder.

    Names of weight files are relative to that folder. This library and other tools read it. Whether
    Core ML itself loads it is not measured: its compiler writes more files.
    """
    folder.mkdir()
    places, kind = [(spec, folder)], spec.WhichOneof("Type")
    if kind == "mlProgram":
        (folder / TEXT).write_text(
            write_text(spec.mlProgram, spec.specificationVersion), encoding="utf-8"
        )
    elif kind == "pipeline" and not depth:
        places = []
        for i, part in enumerate(spec.pipeline.models):
            places += write_compiled(part, folder / f"model{i}", depth + 1)
    else:
        raise InvalidPackage(
            f"a {kind or 'model of no type'} cannot be written as a compiled model; only ML "
            "Programs and pipelines of them can"
        )
    description = spec.description.SerializeToString()
    code = PROGRAM if kind == "mlProgram" else PIPELINE
    head = START.pack(code, len(b"generic")) + b"generic"
    (folder / DATA).write_bytes(
        head + VERSION.pack(spec.specificationVersion, len(description)) + description
    )
    return places
