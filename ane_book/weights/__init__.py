"""Readers of weights: one `WeightSource` per file format, all with the names of `transformers`.

Opening a source reads only headers, and compares every tensor's name and shape with what the
configuration asks for, so that a damaged file is refused before any work is done. Reading maps the
file and returns one tensor at a time as float32, whatever the file stores. A matrix is (out, in),
as PyTorch stores it.

    source.py         `WeightSource`, the interface, and how files are read and checked
    safetensors.py    a Hugging Face folder: config.json, one or several weight files, tokenizer
    quantised/        safetensors in fewer bits: FP8, compressed-tensors, MXFP4, AWQ, GPTQ, ...
    gguf.py           llama.cpp's format: metadata, quantised tensors and tokenizer in one file
    gguf_header.py    the layout of a GGUF file
    random.py         no file at all: a tensor is a function of its name and a seed
    hub.py            where a model's files are on this machine, or how to get them
    folder.py         the tokenizer of a Hugging Face folder
    sentences.py      the settings of sentence-transformers beside an encoder
    tokenizer.py      tokenizer.json made from a GGUF's metadata

`ane_book.weights.onnx` reads folders of ONNX Runtime GenAI: a graph with tensors beside it.

Letters: see `ane_book.models.base`.
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
    from ane_book.weights.onnx import OnnxSource, is_bundle
    from ane_book.weights.safetensors import SafetensorsSource

    if path.is_dir():
        if any(path.glob("*.safetensors")):
            return SafetensorsSource(path)
        if is_bundle(path):
            return OnnxSource(path)
        if (path / "config.json").exists():
            return SafetensorsSource(path)
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            return GGUFSource(ggufs[0])
        if (path / "Data" / "com.apple.CoreML").is_dir():
            raise WeightsNotFound(
                f"{path}: a package, which holds a program and nothing to talk with; "
                f"`ane-book inspect --run {path}` runs it"
            )
        if (path / "main.mlirb").exists():
            raise WeightsNotFound(
                f"{path}: an asset of Core AI, which holds a program and nothing to talk with; "
                f"`ane-book check {path}` looks at it, and `ane-book run BUNDLE PROMPT "
                "--backend coreai` runs the assets of a bundle"
            )
        if (path / "manifest.json").exists():
            raise WeightsNotFound(
                f"{path}: a bundle, which is converted already; `ane-book run {path} PROMPT` runs "
                "it, and another conversion starts from the weights"
            )
        found = f"{len(ggufs)} .gguf files; name one of them" if ggufs else "none of these"
        raise WeightsNotFound(
            f"{path}: a folder of weights holds config.json with *.safetensors, one .gguf file, "
            "or genai_config.json with .onnx; "
            f"this one has {found}"
        )
    if not path.exists():
        raise WeightsNotFound(f"{path}: there is no such file or folder")
    if path.suffix == ".safetensors":
        return SafetensorsSource(path)
    if path.suffix == ".onnx":
        return OnnxSource(path)
    return GGUFSource(path)  # by content, not by name, since the hub's cache renames files
