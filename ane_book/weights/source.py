"""What the sources of every format share: what one gives, and how files are read and checked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
import hashlib
import json
from pathlib import Path
from typing import Any

from ane_book import models
from ane_book.errors import InvalidWeights, UnsupportedModel, first_fault, refuse_pointer
from ane_book.models.base.architecture import Shape
from ane_book.models.base.dense import plain_rope as plain
import numpy as np
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

__all__ = [
    "Integers", "Shape", "TokenizerFiles", "WeightSource", "check_file", "check_tensors",
    "joined", "plain_rope", "read_config", "read_json", "read_text",
]  # fmt: skip

TEXT_BYTES = 100_000_000  # a config.json has 1 kB, a tokenizer.json 35 MB at most


@dataclass(frozen=True)
class TokenizerFiles:
    """What turns text into token ids and back, and tells when an answer ends.

    Raises pydantic's ValidationError for a field of another type.
    """

    json: str  # the text of a complete tokenizer.json
    chat_template: str | None = None  # Jinja
    eos_token_ids: tuple[int, ...] = ()  # generation stops at any of them
    bos_token_id: int | None = None
    bos_token: str | None = None  # the two that templates refer to by name
    eos_token: str | None = None


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class Integers:
    """A matrix as a file stores it: w = scale * (data - zero), by blocks of a row's columns.

    data (out, in), int8 or uint8. scale (out, B) float32. zero (out, B) of data's dtype, or None
    where it is 0 throughout. bits: 4 or 8, of data and of zero.
    """

    data: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int

    def rows(self, start: int, stop: int) -> "Integers":
        """Some of its rows."""
        zero = None if self.zero is None else self.zero[start:stop]
        return Integers(self.data[start:stop], self.scale[start:stop], zero, self.bits)

    def halved(self) -> np.ndarray:
        """(out, in) float32: what it stands for with scales in fp16, in the values of fp16."""
        block = self.data.shape[1] // self.scale.shape[1]
        wide = self.data.astype(np.float32)
        if self.zero is not None:
            wide -= np.repeat(self.zero.astype(np.float32), block, axis=1)
        wide *= np.repeat(self.scale.astype(np.float16).astype(np.float32), block, axis=1)
        return wide.astype(np.float16).astype(np.float32)


class WeightSource(ABC):
    """Named tensors, a configuration and a tokenizer, from wherever they are stored."""

    kind: str  # "gguf", "safetensors", "onnx" or "random"
    files: list[Path]  # what `fingerprint` covers
    _shapes: dict[str, Shape]  # of all tensors
    _place: str  # what an error about a tensor begins with

    def names(self) -> list[str]:
        """Names as `transformers` has them; `lm_head.weight` is absent when it is tied."""
        return list(self._shapes)

    def shape(self, name: str) -> Shape:
        """PyTorch order, (out, in) for a matrix.

        Raises InvalidWeights when the source has no tensor of that name.
        """
        if name not in self._shapes:
            raise InvalidWeights(f"{self._place}: there is no tensor {name}")
        return self._shapes[name]

    def tensor(self, name: str) -> np.ndarray:
        """One tensor: float32, contiguous, writable and the caller's own.

        Raises InvalidWeights when the source has no tensor of that name.
        """
        self.shape(name)  # raises
        return self._read(name)

    @abstractmethod
    def _read(self, name: str) -> np.ndarray:
        """One tensor that is there, as `tensor` gives it."""

    def integers(self, name: str) -> Integers | None:
        """A matrix as it is stored, where that is by integers that Core ML has a form for."""
        return None

    def has_integers(self) -> bool:
        """Whether any matrix is stored so; nothing is read for it."""
        return False

    @abstractmethod
    def config(self) -> dict:
        """The fields of a Hugging Face `config.json`, with `rope_theta` at the top and
        `rope_scaling` a dict or None, in whichever style the file has them."""

    @abstractmethod
    def tokenizer(self) -> TokenizerFiles:
        """Raises UnsupportedModel for a kind of tokenizer that we do not have."""

    def fingerprint(self) -> str:
        """sha256 of the bytes of `files`, one after another, in hexadecimal."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for path in self.files:
            check_file(path)
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()


def joined(parts: list[Integers | None]) -> Integers | None:
    """The rows of several matrices as those of one; None where they are not all stored alike."""
    stored = [part for part in parts if part is not None]
    forms = {(p.bits, p.data.dtype, p.scale.shape[1], p.zero is None) for p in stored}
    if len(stored) < len(parts) or len(forms) != 1:
        return None
    zeros = [part.zero for part in stored if part.zero is not None]
    return Integers(
        data=np.concatenate([part.data for part in stored]),
        scale=np.concatenate([part.scale for part in stored]),
        zero=np.concatenate(zeros) if zeros else None,
        bits=stored[0].bits,
    )


def check_file(path: Path) -> None:
    """Raise InvalidWeights for what cannot be read, a folder, a pipe, which would never end, or a
    pointer of Git LFS."""
    if not path.is_file():
        raise InvalidWeights(f"{path}: not a file")
    try:
        refuse_pointer(path, InvalidWeights)
    except OSError as error:
        raise InvalidWeights(f"{path}: cannot be read: {error}") from None


def read_text(path: Path) -> str:
    """The text of a small file; raises InvalidWeights for one that is none, or is large."""
    check_file(path)
    if path.stat().st_size > TEXT_BYTES:
        raise InvalidWeights(f"{path}: larger than {TEXT_BYTES / 1e6:.0f} MB")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidWeights(f"{path}: cannot be read: {error}") from None


def read_json(path: Path, kind: type = dict):
    """The object, or what else is of this kind, in a JSON file; raises InvalidWeights."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidWeights(f"{path}: not JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else f"a {kind.__name__}"
        raise InvalidWeights(f"{path}: holds a {type(value).__name__}, not {wanted}")
    return value


def read_config(config: dict, place: str) -> Any:
    """The configuration, read by its architecture; every fault in it becomes one error that starts
    with `place`."""
    try:
        return models.read_config(config)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{place}: {str(error).removeprefix('config.json: ')}") from None
    except KeyError as error:
        raise InvalidWeights(f"{place}: the field {error} is missing") from None
    except ValidationError as error:
        raise InvalidWeights(f"{place}: {first_fault(error)}") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InvalidWeights(f"{place}: a field has a value that is no use: {error}") from None


def check_tensors(found: Mapping[str, Shape], expected: Mapping[str, Shape], place: str) -> None:
    """Raise InvalidWeights unless the same names have the same shapes on both sides."""
    for name, shape in expected.items():
        if name not in found:
            raise InvalidWeights(f"{place}: tensor {name} is missing; get the file again")
        if found[name] != shape:
            raise InvalidWeights(
                f"{place}: tensor {name} has shape {found[name]}, but the configuration asks for "
                f"{shape}"
            )
    left_over = [name for name in found if name not in expected]
    if left_over:
        raise InvalidWeights(
            f"{place}: tensor {left_over[0]} is left over ({len(left_over)} in all): the "
            "configuration describes a model without it"
        )


def plain_rope(config: dict, place: str) -> dict:
    """`plain_rope` of models/base/dense: all sources have the rotary embedding in that one way."""
    for field in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(field), dict | None):
            raise InvalidWeights(f"{place}: {field} is {config[field]!r}, not an object")
    return plain(config)
