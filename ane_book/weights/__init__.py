"""Readers of weights: one `WeightSource` per file format, all with the names of `transformers`.

Opening a source reads only headers, and compares every tensor's name and shape with what the
configuration asks for, so that a damaged file is refused before any work is done. Reading maps the
file and returns one tensor at a time as float32, whatever the file stores. A matrix is (out, in),
as PyTorch stores it.

The formats are safetensors (`quantised/` has those in fewer bits), GGUF, and folders of ONNX
Runtime GenAI (`onnx/`); `random.py` needs no file at all, and `hub.py` finds a model's files.
"""

from pathlib import Path

from ane_book.errors import InvalidWeights, WeightsNotFound
from ane_book.weights.source import (
    Integers,
    Shape,
    TokenizerFiles,
    WeightSource,
    joined,
    read_config,
    read_json,
)

__all__ = [
    "Integers", "Shape", "TokenizerFiles", "WeightSource", "joined", "open_source", "read_config",
    "read_json",
]  # fmt: skip

#: What a folder without weights may be, by what it holds.
OTHERS = {
    "Data/com.apple.CoreML": "a package, which holds a program; `mlprogram run {}` runs it",
    "main.mlirb": "an asset of Core AI, which holds a program; `ane-book check {}` looks at it",
    "manifest.json": "a bundle, which is converted already; `ane-book run {} PROMPT` runs it",
}


def name_of(path: Path) -> str:
    """What a model is called by the place of its weights: a folder or a .gguf file by its own name,
    another file by its folder's."""
    path = path.resolve()
    folder = path.parent if path.suffix in (".safetensors", ".onnx") else path
    return folder.name.removesuffix(".gguf")


def open_source(path: str | Path) -> WeightSource:
    """Open and check the weights at a path; the kind of file decides which source reads them.

    path: a `.gguf` file; a folder with `config.json` and `*.safetensors` (or with nothing but one
    `.gguf` file); a `.safetensors` file beside its `config.json`; a folder of ONNX Runtime GenAI,
    or one `.onnx` file of it. Raises WeightsNotFound if the path is none of these,
    InvalidWeights if it is damaged, UnsupportedModel if this library does not convert it.
    """
    try:
        return _open(Path(path))
    except OSError as error:  # of a folder that may not be searched, a name that is too long
        raise InvalidWeights(f"{path}: cannot be read: {error}") from None


def _open(path: Path) -> WeightSource:
    from ane_book.weights.gguf import GGUFSource
    from ane_book.weights.onnx import GENAI, OnnxSource
    from ane_book.weights.safetensors import SafetensorsSource

    if not path.exists():
        raise WeightsNotFound(f"{path}: there is no such file or folder")
    if path.is_dir():
        if any(path.glob("*.safetensors")):
            return SafetensorsSource(path)
        if (path / GENAI).exists():
            return OnnxSource(path)
        if (path / "config.json").exists():
            return SafetensorsSource(path)
        ggufs = sorted(path.glob("*.gguf"))
        for other, what in OTHERS.items():
            if (path / other).exists():
                raise WeightsNotFound(f"{path}: {what.format(path)}")
        if len(ggufs) != 1:
            found = f"{len(ggufs)} .gguf files; name one of them" if ggufs else "none of these"
            raise WeightsNotFound(
                f"{path}: a folder of weights holds config.json with *.safetensors, one .gguf "
                f"file, or genai_config.json with .onnx; this one has {found}"
            )
        path = ggufs[0]
    if path.suffix == ".safetensors":
        return SafetensorsSource(path)
    if path.suffix == ".onnx":
        return OnnxSource(path)
    return GGUFSource(path)  # by content, not by name, since the hub's cache renames files
