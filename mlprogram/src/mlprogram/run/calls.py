"""What the recorder of steps writes down: calls of compiled code, and the memory that they name."""

from dataclasses import dataclass, field
from functools import cached_property

from mlprogram.run.plan import Step
from torch import Tensor


@dataclass(frozen=True)
class Region:
    """A piece of memory. name: of the value or state that it is; "" for one that steps make. index:
    among those of its recorder; recorders of other sizes have an equal one there. is_known: of
    whole numbers that follow from sizes.
    """

    tensor: Tensor = field(compare=False)
    index: int
    name: str = field(default="", compare=False)
    is_state: bool = field(default=False, compare=False)
    is_known: bool = field(default=False, compare=False)

    @cached_property
    def bytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()


@dataclass(frozen=True)
class ConstantMemory:
    """Memory that is the same in every call: of a weight, or of what was computed from constants
    when a step was recorded. owner: what it lives with; a table has only its address."""

    address: int
    owner: object = field(compare=False)


@dataclass(frozen=True)
class Written:
    """Where it is kept how many slots of a state were written; see `run/states.py`."""

    state: str


@dataclass(frozen=True)
class Used:
    """The number of columns that a call uses, or 0 for all; see `columns.py`."""


#: Memory, by its owner, and an offset in it; or numbers, to be pointed at; or nothing and a number.
Place = tuple[Region | ConstantMemory | Written | Used | tuple[int, ...] | None, int]


@dataclass
class KernelCall:
    """A call of compiled code. entry: the name of its entry in run.c."""

    entry: str
    arguments: list[Place]
    step: Step
