"""Open and save the containers of a model: `.mlpackage`, `.mlmodelc`, `.mlmodel`.

Each is opened as a `Model` protobuf and the folder of its weights. All files are untrusted, and
none is changed, while opening a package with coremltools' `MLModel` rewrites its `Manifest.json`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import hashlib
import json
from pathlib import Path
import shutil
import tempfile
from typing import Any
import uuid

from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.files import former_place, refuse_others, regular_files
from mlprogram.package.files import inside, proto, read_file

MAX_MANIFEST, MAX_MODEL = 1 << 20, (1 << 31) - 1  # bytes; the second is protobuf's own limit
MODEL = Path("com.apple.CoreML/model.mlmodel")  # below Data, as coremltools names it


@dataclass(frozen=True)
class Container:
    """A `Model` message of `Model.proto`, and the place of the files that it names.

    path: as given, for messages. folder: nothing outside of it is read. base: the folder that
    `@model_path` stands for in the name of a weight file. file, digest: of a package the message's
    file and its sha256.
    """

    path: Path
    folder: Path
    base: Path
    spec: Any  # protobuf's
    file: Path | None = None
    digest: str = ""


def open_container(path: str | Path) -> Container:
    """Open a `.mlpackage`, a `.mlmodelc` or a single `.mlmodel`, whatever type of model it holds.

    Raises InvalidPackage.
    """
    path = Path(path)
    if not path.exists():
        raise InvalidPackage(f"{path}: no such package")
    from mlprogram.package.compiled import is_compiled, read_compiled

    folder = path.resolve()
    if folder.is_file():
        if path.suffix != ".mlmodel":
            raise InvalidPackage(f"{path}: not a .mlpackage, .mlmodelc or .mlmodel")
        content = read_file(folder, MAX_MODEL)
        return Container(path, folder.parent, folder.parent, _parsed(content, path))
    if is_compiled(folder):
        return Container(path, folder, folder, read_compiled(folder, path))
    if (folder / "main.mlirb").exists():
        raise InvalidPackage(
            f"{path}: an asset of Core AI, not a package; give the package that it was made of"
        )
    names = {one.name for one in folder.iterdir()}  # exactly: a bundle has manifest.json
    packages = sorted(name for name in names if name.endswith((".mlpackage", ".mlmodelc")))
    if packages and "Manifest.json" not in names:
        raise InvalidPackage(
            f"{path}: a folder of packages; name one of them, such as {path / packages[0]}"
        )
    file, content = read_model(folder, path)
    digest = hashlib.sha256(content).hexdigest()
    return Container(path, folder, file.parent, _parsed(content, path), file, digest)


def refuse(kind: str | None, path: Path) -> InvalidPackage:
    """The error for a model that is not an ML Program, which says what to do."""
    if not kind:
        return InvalidPackage(f"{path}: holds no model, not an ML Program")
    if kind == "pipeline":
        mend = "open it with mlprogram.open, which runs its parts one after the other"
    elif kind.startswith("neuralNetwork"):
        mend = 'convert its source again, with convert_to="mlprogram"'
    else:
        mend = "only ML Programs run here, and this type runs on a Mac alone"
    return InvalidPackage(f"{path}: holds a {kind}, not an ML Program; {mend}")


def save(source: str | Path | Container, target: str | Path) -> None:
    """Write a model as the folder that the name of `target` asks for, .mlpackage or .mlmodelc.

    The program stays the same, op for op, and weight files are copied. The target is written
    atomically. Raises InvalidInput if it exists or has another suffix, and InvalidPackage if the
    source cannot be read.
    """
    from mlprogram.package.compiled import write_compiled

    model = source if isinstance(source, Container) else open_container(source)
    target = Path(target)
    if target.suffix not in (".mlpackage", ".mlmodelc"):
        raise InvalidInput(f"{target}: the name must end in .mlpackage or .mlmodelc")
    if target.exists():
        raise InvalidInput(f"{target} exists already; delete it, or name another")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as part:
            whole = Path(part) / target.name
            if target.suffix == ".mlmodelc":
                places = write_compiled(model.spec, whole)
            else:
                places = [(model.spec, _write_package(model.spec, whole))]
            for spec, base in places:
                for name in sorted({value.fileName for _, value in blob_values(spec)}):
                    _copy(model, name, base)
            whole.rename(target)
    except OSError as error:
        raise InvalidInput(f"{target}: cannot be written ({error.strerror})") from None


def check_replaceable(path: Path) -> None:
    """Raise InvalidInput where more than a package would be lost if another took its place."""
    try:
        model = None if path.is_symlink() else open_container(path)
    except InvalidPackage:
        model = None
    if model is None or model.file is None:
        raise InvalidInput(f"{path} is no package, and stays as it is; choose another name")
    names = {value.fileName.removeprefix("@model_path/") for _, value in blob_values(model.spec)}
    ours = {model.folder / "Manifest.json", model.file, *map(model.base.joinpath, names)}
    refuse_others(path, regular_files(path), lambda name: model.folder / name in ours)
    former_place(path)


def _parsed(content: bytes, path: Path):
    from google.protobuf.message import DecodeError

    model = proto("Model_pb2").Model()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise InvalidPackage(f"{path}: the model file is damaged ({error})") from None
    return model


def read_model(folder: Path, path: Path) -> tuple[Path, bytes]:
    """The file of a package's model, and its content. folder: the package's, resolved. path: as it
    was given."""
    what = f"{path} is not a .mlpackage:"
    manifest = read_file(inside(folder, folder / "Manifest.json", what), MAX_MANIFEST)
    try:
        entries = json.loads(manifest)
        item = entries["itemInfoEntries"][entries["rootModelIdentifier"]]["path"]
        file = folder / "Data" / item
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidPackage(
            f"{what} Manifest.json is damaged ({error!r}); give the folder that coremltools' "
            "save() wrote"
        ) from None
    file = inside(folder, file, f"{path}: the model file")
    return file, read_file(file, MAX_MODEL)


# --- writing --------------------------------------------------------------------------------------


def _write_package(spec, folder: Path) -> Path:
    """Write a package without its weights; returns the folder that their names are relative to."""
    file = folder / "Data" / MODEL
    (file.parent / "weights").mkdir(parents=True)
    file.write_bytes(spec.SerializeToString())
    write_manifest(folder, lambda name: str(uuid.uuid4()).upper())
    return file.parent


def write_manifest(folder: Path, identifier: Callable[[str], str]) -> None:
    """Write a package's Manifest.json; identifier: makes an item's id, given the item's name."""
    paths = {"Specification": MODEL, "Weights": MODEL.parent / "weights"}
    items = {
        identifier(path.name): {
            "author": "com.apple.CoreML",
            "description": f"CoreML Model {what}",
            "name": path.name,
            "path": str(path),
        }
        for what, path in paths.items()
    }
    manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": items}
    manifest["rootModelIdentifier"] = next(iter(items))
    (folder / "Manifest.json").write_text(json.dumps(manifest, indent=4))


def _copy(model: Container, name: str, base: Path) -> None:
    """Copy a weight file to the place that has the same name relative to `base`."""
    place = name.removeprefix("@model_path/")
    file = inside(model.folder, model.base / place, f"{model.path}: its weight file")
    target = (base / place).resolve()
    if not target.is_relative_to(base.resolve()):
        raise InvalidPackage(f"{model.path}: its weight file {name!r} lies outside of it")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def blob_values(spec) -> Iterator[tuple[str, Any]]:
    """Every reference to a weight file in a model and its parts: an op's name, a BlobFileValue."""
    for field in ("pipeline", "pipelineClassifier", "pipelineRegressor"):
        if spec.HasField(field):
            nested = getattr(spec, field)
            for part in nested.models if field == "pipeline" else nested.pipeline.models:
                yield from blob_values(part)
            return
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            yield from _in_block(block)


def _in_block(block) -> Iterator[tuple[str, Any]]:
    for operation in block.operations:
        name = operation.outputs[0].name if operation.outputs else operation.type
        values = [*operation.attributes.values()]
        for argument in operation.inputs.values():
            values += [binding.value for binding in argument.arguments]
        yield from ((name, v.blobFileValue) for v in values if v.HasField("blobFileValue"))
        for nested in operation.blocks:
            yield from _in_block(nested)
