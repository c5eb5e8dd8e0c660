"""What a quantised checkpoint stores, checked by name, type and shape; and what is made of it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.models.base.architecture import Shape
import torch

FLOATS = ("F32", "F16", "BF16")  # safetensors' names
FLOATS8 = ("F8_E4M3", "F8_E5M2")
INDICES = ("I32", "I64")

ADVICE = "get the model's weights in 16 bits, and compress them with --quant"


class Header(NamedTuple):
    """What a file says of a tensor: its type by safetensors' name, and its shape."""

    dtype: str
    shape: Shape


@dataclass(frozen=True)
class WeightRule:
    """How a plain tensor is made of stored ones.

    shape: of what `make` returns, a new, contiguous float32 tensor. parts: the stored tensors.
    """

    shape: Shape
    parts: tuple[str, ...]
    make: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Stored:
    """The tensors of a checkpoint. read: reads one as it is stored. place: begins messages."""

    headers: Mapping[str, Header]
    read: Callable[[str], torch.Tensor]
    place: str

    def stems(self, ending: str) -> list[str]:
        """The names that end so, without the ending."""
        return [name.removesuffix(ending) for name in self.headers if name.endswith(ending)]

    def of_type(self, dtypes: tuple[str, ...], ending: str = "") -> list[str]:
        """The names of tensors of these types that end so."""
        found = self.headers.items()
        return [name for name, own in found if own.dtype in dtypes and name.endswith(ending)]

    def part(
        self, name: str, dtypes: tuple[str, ...], shapes: Collection[Shape] | None = None
    ) -> str:
        """`name`, a part of a quantised tensor. Raises InvalidWeights unless it is stored with one
        of the types and, if they are given, one of the shapes."""
        if name not in self.headers:
            raise self.error(f"tensor {name} is missing, without which the others are no use")
        dtype, shape = self.headers[name]
        if dtype not in dtypes:
            raise self.error(f"tensor {name} is of type {dtype}, not {' or '.join(dtypes)}")
        if shapes is not None and shape not in shapes:
            wanted = " or ".join(str(wanted) for wanted in shapes) or "none that is known"
            raise self.error(
                f"tensor {name} has shape {shape}, but the rest of its matrix asks for {wanted}"
            )
        return name

    def matrix(self, name: str, dtypes: tuple[str, ...]) -> Shape:
        """The shape of a part that has at least two axes and no empty one."""
        shape = self.headers[self.part(name, dtypes)].shape
        if len(shape) < 2 or 0 in shape:
            raise self.error(f"tensor {name} has shape {shape} and is no matrix")
        return shape

    def only(self, field: str, value, read: Collection) -> None:
        """Raise UnsupportedModel unless a field of quantization_config has one of these values."""
        if value not in read:
            names = ", ".join(str(one) for one in read if one)
            raise UnsupportedModel(
                f"{self.place}: quantization_config.{field} is {value!r:.60}, which is not read"
                f"{f' (read: {names})' if names else ''}; {ADVICE}"
            )

    def error(self, what: str) -> InvalidWeights:
        return InvalidWeights(f"{self.place}: {what}; get the file again")
