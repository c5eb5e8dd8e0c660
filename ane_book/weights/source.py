"""`WeightSource`, the interface of every weight format, and the reading and checking of files."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
import hashlib
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ane_book.errors import InvalidWeights, UnsupportedModel, first_fault
from mlprogram.files import check_file
import numpy as np
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

Shape = tuple[int, ...]

#: The names of a tensor's pieces: see `Experts.pieces`.
Pieces = Sequence[tuple[str, ...]]

TEXT_BYTES = 100_000_000  # a config.json has 1 kB, a tokenizer.json 35 MB at most

#: What is said of the files that `torch.save` writes.
PICKLED = (
    "pickled, and opening it may run code of its author; AutoModelForCausalLM.from_pretrained("
    "folder).save_pretrained(folder) of transformers writes safetensors"
)


@dataclass(frozen=True)
class TokenizerFiles:
    """The contents of a model's tokenizer files, and the token ids that end an answer.

    Raises pydantic's ValidationError for a field of another type.
    """

    json: str  # the text of a complete tokenizer.json
    chat_template: str | None = None  # Jinja
    eos_token_ids: tuple[int, ...] = ()  # generation stops at any of them
    bos_token_id: int | None = None
    bos_token: str | None = None  # chat templates refer to these two by name
    eos_token: str | None = None


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class Integers:
    """A block-quantised matrix as a file stores it: w = scale * (data - zero).

    Each row has B blocks of columns. data (out, in), int8 or uint8. scale (out, B) float32. zero
    (out, B) in data's dtype, or None if it is 0 everywhere. bits: 4 or 8, of data and of zero.
    """

    data: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int

    def rows(self, start: int, stop: int) -> "Integers":
        """The rows from `start` to `stop`."""
        zero = None if self.zero is None else self.zero[start:stop]
        return Integers(self.data[start:stop], self.scale[start:stop], zero, self.bits)

    def halved(self) -> np.ndarray:
        """Dequantise with the scales rounded to fp16: (out, in) float32, holding fp16 values."""
        block = self.data.shape[1] // self.scale.shape[1]
        wide = self.data.astype(np.float32)
        if self.zero is not None:
            wide -= np.repeat(self.zero.astype(np.float32), block, axis=1)
        wide *= np.repeat(self.scale.astype(np.float16).astype(np.float32), block, axis=1)
        return wide.astype(np.float16).astype(np.float32)


class WeightSource(ABC):
    """Named tensors, a configuration and a tokenizer, from wherever they are stored."""

    kind: str  # "gguf", "safetensors", "onnx" or "random"
    files: list[Path]  # the files that `fingerprint` covers
    _fields: dict  # of `config`
    _shapes: dict[str, Shape]  # the shape of each tensor
    _place: str  # the beginning of error messages: the path
    _in_pieces: Mapping[str, Pieces] = MappingProxyType({})  # of tensors that are not stored whole

    def names(self) -> list[str]:
        """The tensors' names in `transformers`; `lm_head.weight` is absent if it is tied."""
        return list(self._shapes)

    def shape(self, name: str) -> Shape:
        """The shape of a tensor in PyTorch's order: (out, in) for a matrix.

        Raises InvalidWeights if the source has no tensor of that name.
        """
        if name not in self._shapes:
            raise InvalidWeights(f"{self._place}: there is no tensor {name}")
        return self._shapes[name]

    def where(self, name: str) -> str:
        """A tensor and the file that has it, as errors begin."""
        return f"{self._place}: tensor {name}"

    def tensor(self, name: str) -> np.ndarray:
        """Read a tensor as a new, contiguous float32 array that the caller may change.

        Raises InvalidWeights if the source has no tensor of that name.
        """
        self.shape(name)  # raises
        if name not in self._in_pieces:
            return self._read(name)
        items = (np.concatenate([*map(self._read, names)]) for names in self._in_pieces[name])
        return np.stack([*items])

    def rows(self, name: str, count: int) -> Iterator[np.ndarray]:
        """Yield a matrix in order, `count` rows at a time; each as `tensor` would return it."""
        whole = self.tensor(name)
        yield from (whole[at : at + count] for at in range(0, len(whole), count))

    @abstractmethod
    def _read(self, name: str) -> np.ndarray:
        """Read a tensor, or a piece of one, that exists, as `tensor` returns it."""

    def integers(self, name: str) -> Integers | None:
        """The matrix as stored integers, or None if it is stored otherwise or Core ML has no
        encoding for them."""
        return None

    def has_integers(self) -> bool:
        """Whether `integers` returns any matrix; reads no tensor."""
        return False

    def config(self) -> dict:
        """The fields of a Hugging Face `config.json`, after `plain_rope`: `rope_theta` at the top
        level and `rope_scaling` a dict or None."""
        return deepcopy(self._fields)

    @abstractmethod
    def tokenizer(self) -> TokenizerFiles:
        """Read the tokenizer. Raises UnsupportedModel for a kind that is not supported."""

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
    """Concatenate the rows of several matrices; None unless all are stored alike."""
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


def read_text(path: Path) -> str:
    """Read a small text file. Raises InvalidWeights if it is not text or is too large."""
    check_file(path)
    if path.stat().st_size > TEXT_BYTES:
        raise InvalidWeights(f"{path}: larger than {TEXT_BYTES / 1e6:.0f} MB")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidWeights(f"{path}: cannot be read: {error}") from None


def read_json(path: Path, kind: type = dict):
    """Parse a JSON file. Raises InvalidWeights unless it holds an instance of `kind`."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidWeights(f"{path}: not JSON: {error}") from None
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else f"a {kind.__name__}"
        raise InvalidWeights(f"{path}: holds a {type(value).__name__}, not {wanted}")
    return value


def read_config(config: dict, place: str) -> Any:
    """Parse a configuration with its architecture. Every fault in it becomes one error, whose
    message starts with `place`."""
    from ane_book import models  # every architecture, of which a kept bundle needs none

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


def piece_shapes(shapes: Mapping[str, Shape], pieces: Mapping[str, Pieces]) -> dict[str, Shape]:
    """`shapes` with those of `pieces` in place of the tensors that are made of them."""
    found: dict[str, Shape] = {}
    for name, shape in shapes.items():
        for parts in pieces.get(name, ()):
            found |= dict.fromkeys(parts, (shape[1] // len(parts), *shape[2:]))
        found |= {} if name in pieces else {name: shape}
    return found
