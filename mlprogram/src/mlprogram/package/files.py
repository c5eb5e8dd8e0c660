"""Helpers of the readers: safe access to untrusted files, and Apple's protobuf modules."""

import importlib
import importlib.util
from pathlib import Path
import sys
from types import ModuleType

from mlprogram.errors import AbsentFile, InvalidPackage, refuse_pointer


def proto(name: str) -> ModuleType:
    """A protobuf module of coremltools, such as "Model_pb2", without importing coremltools itself.

    `import coremltools` takes seconds and is needed to convert, not to read.
    """
    if "coremltools" in sys.modules:
        return importlib.import_module(f"coremltools.proto.{name}")
    package = "mlprogram._coremltools_proto"
    if package not in sys.modules:
        spec = importlib.util.find_spec("coremltools")
        module = ModuleType(package)
        if spec is None or spec.origin is None:
            raise ImportError("coremltools, which has the format's protobuf modules, is missing")
        module.__path__ = [str(Path(spec.origin).parent / "proto")]
        sys.modules[package] = module
    return importlib.import_module(f"{package}.{name}")


def inside(folder: Path, path: Path, what: str) -> Path:
    """Resolve links in `path`, and check that it is a regular file below the resolved `folder`."""
    try:
        found = path.resolve()
        if found.is_relative_to(folder) and found.is_file():
            return found
    except (OSError, ValueError, RuntimeError):  # too long, with a null byte, a loop of links
        pass
    raise AbsentFile(f"{what} {path.name!r} is not in the package as a regular file")


def read_file(file: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes."""
    try:
        size = file.stat().st_size
        if size > limit:
            raise InvalidPackage(f"{file}: {size:,} bytes are more than such a file can have")
        refuse_pointer(file, InvalidPackage)
        return file.read_bytes()
    except OSError as error:
        raise InvalidPackage(f"{file}: cannot be read ({error.strerror})") from None
