"""Record what steps of a plan ask of torch and of the compiled kernels, for `stretches.py`.

The functions of the steps are called once, on tensors whose memory nobody fills. Views cost
nothing, copies and simple arithmetic have kernels in `c/run.c`, and calls of kernels are what they
are. Whatever else torch is asked for, only torch can do.
"""

from bisect import bisect, insort
from collections.abc import Callable, Sequence
import ctypes
from dataclasses import dataclass
import struct
from typing import Any

from mlprogram.kernels import native
from mlprogram.kernels.native import ops as native_ops
from mlprogram.ops.tensor_transformation import write_slice
from mlprogram.run.plan import Argument, ExecutionPlan, Name, Step
from mlprogram.run.states import States
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["KernelCall", "NotNative", "Recorder", "Region", "Written"]

#: Ops without a kernel that may be recorded: they look at shapes alone, and never at values.
PLAIN = frozenset(
    [
        "add", "cast", "concat", "expand_dims", "flatten2d", "identity", "mul", "real_div",
        "reshape", "slice_by_index", "slice_by_size", "slice_update", "split", "squeeze", "sub",
        "tile", "transpose",
    ]
)  # fmt: skip

OPEN = frozenset(["size", "expand"])  # kernels that look at values
LARGEST = 1 << 30  # bytes of all values of a stretch; beside so many, Python's time is nothing

ADD, SUB, MUL, DIV, CONVERT = range(5)  # of `elementwise` in run.c

_aten = torch.ops.aten


class NotNative(Exception):
    """A step cannot be part of a stretch; the message says why."""


@dataclass(eq=False)
class Region:
    """A piece of memory. name: of the value or state that it is; "" for one that steps make."""

    tensor: Tensor
    name: str = ""
    is_state: bool = False

    @property
    def bytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()


@dataclass(frozen=True)
class Written:
    """A number: how many slots of these states were written, of `slots`; see `run/states.py`."""

    names: tuple[str, ...]
    slots: int

    def of(self, states: States) -> int:
        return max(states.written.get(name, self.slots) for name in self.names)


# a region and an offset in it, or an address or number, or what is known when a stretch runs
Place = tuple[Region | Written | None, int]


@dataclass
class KernelCall:
    """A call of compiled code. entry: the address of its entry in run.c."""

    entry: int
    arguments: list[Place]
    step: Step


class Recorder(TorchDispatchMode):
    """Records steps. values: what they made, or were given, by name, of memory that nobody fills.

    kept: objects of which the calls have only the address.
    """

    def __init__(self, plan: ExecutionPlan):
        super().__init__()
        self.plan = plan
        self.values: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.regions: dict[int, Region] = {}  # by address
        self.starts: list[int] = []
        self.calls: list[KernelCall] = []
        self.kept: list[object] = []
        self.steps: list[Step] = []
        self.updated: set[str] = set()  # states
        self.bytes = 0

    # --- steps --------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        """Record a step. Raises NotNative, and forgets it, if that is impossible."""
        self.step, count = step, len(self.calls)
        native.recording.to = self.kernel
        try:
            with torch.inference_mode(False), torch.no_grad(), self:
                self.values |= zip(step.results, self.run(step), strict=True)
        except Exception as error:  # what the step itself raises, it raises again when it runs
            del self.calls[count:]
            known = isinstance(error, NotNative)
            raise (error if known else NotNative("it cannot run")) from error
        finally:
            native.recording.to = None
        self.steps.append(step)

    def run(self, step: Step) -> Sequence[Tensor]:
        type_ = step.operation.type
        if type_ == "read_state":
            return [self.state(step.state)]
        if type_ == "write_state" and step.stored is None:
            return []
        if step.function is None and type_ == "slice_update":
            view = {a.key: self.argument(a) for a in step.arguments if a.key != "x"}
            self.updated.add(step.state)
            write_slice(self.state(step.state), **view)
            return [self.state(step.state)]
        if step.function is None:
            raise NotNative("it replaces a state" if step.stored else "it has blocks")
        if step.kernel in OPEN or (not step.kernel and type_ not in PLAIN):
            raise NotNative("torch computes it")
        given = [(a.key, self.argument(a)) for a in step.arguments]
        made = step.function(*[v for k, v in given if not k], **{k: v for k, v in given if k})
        return made if type_ == "split" else [made]

    def argument(self, argument: Argument) -> Any:
        """The value of an argument, or a list of them if MIL takes several."""
        if argument.static and any(isinstance(value, Name) for value in argument.values):
            raise NotNative(f"its {argument.key} is known at run time only")
        found = [self.value(v.name) if isinstance(v, Name) else v for v in argument.values]
        return found if argument.key == "values" or len(found) > 1 else found[0]

    def value(self, name: str) -> Tensor:
        if name not in self.values:
            self.values[name] = self.given(name, False)
        return self.values[name]

    def state(self, name: str) -> Tensor:
        if name not in self.states:
            self.states[name] = self.given(name, True)
        return self.states[name]

    def given(self, name: str, is_state: bool) -> Tensor:
        """A value or state from outside."""
        type_ = self.plan.function.states[name] if is_state else self.plan.types[name]
        if None in type_.shape or type_.kind in ("list", "dictionary"):
            raise NotNative("a size is known at run time only")
        return self.own(torch.empty(type_.sizes, dtype=self.plan.dtype(type_)), name, is_state)

    # --- memory -------------------------------------------------------------------------------

    def own(self, tensor: Tensor, name: str = "", is_state: bool = False) -> Tensor:
        """Make the memory of a new tensor known."""
        self.bytes += tensor.nbytes
        if not tensor.numel() or self.bytes > LARGEST:
            raise NotNative("it is large" if tensor.numel() else "it has no values")
        start = tensor.untyped_storage().data_ptr()
        self.regions[start] = Region(tensor, name, is_state)
        insort(self.starts, start)
        return tensor

    def region(self, tensor: Tensor) -> Region | None:
        """The memory that a tensor lies in; None if it is a constant."""
        return self.regions.get(tensor.untyped_storage().data_ptr())

    def place(self, address: int | None) -> Place:
        index = bisect(self.starts, address or 0) - 1
        if address and index >= 0:
            region, offset = self.regions[self.starts[index]], address - self.starts[index]
            if offset < region.bytes:
                return region, offset
        return None, address or 0

    # --- calls --------------------------------------------------------------------------------

    def kernel(self, name: str, given: tuple) -> int:
        """Record the call of a compiled kernel."""
        words: list[Place] = []
        for value, type_ in zip(given, native.SIGNATURES[name], strict=True):
            if isinstance(value, ctypes.Array):
                words += map(self.place, value)
            elif type_ is ctypes.c_void_p:
                words.append(self.place(value))
            elif type_ is ctypes.c_float:
                words.append((None, *struct.unpack("q", struct.pack("d", value))))
            else:
                words.append((None, int(value)))
        if name == "attention":
            words.append(self.written(given[0], words[2], words[4]))
        self.calls.append(KernelCall(native.entry(name), words, self.step))
        return 0

    def written(self, attention: int, *cache: Place) -> Place:
        """How many slots attention has to look at, of the first part of its keys and values."""
        shape, names = native_ops.AttentionShape.from_address(attention), list[str]()
        slots, depth = shape.slots[0], shape.depth
        for region, offset in cache:
            if not isinstance(region, Region) or not region.is_state or region.name in self.updated:
                return None, slots
            tensor = region.tensor
            if tensor.shape[-2:] != (slots, depth) or offset % (slots * depth * tensor.itemsize):
                return None, slots
            names.append(region.name)
        return Written(tuple(names), slots), 0

    def fill(self, name: str, how: int, to: Tensor, *operands: Tensor) -> Tensor:
        """Record `copy` or `elementwise`: operands, which are broadcast, to a tensor."""
        if not to.numel():
            return to
        axes = _axes(to, *[x.expand(to.shape) for x in operands])
        if name == "elementwise" and axes[-1][1] != to.itemsize:
            raise NotNative("it writes values apart")
        head = (len(axes), to.itemsize, how, operands[0].dtype == torch.float16)
        numbers = [*head, *(number for row in zip(*axes, strict=True) for number in row)]
        walk = (ctypes.c_int64 * len(numbers))(*numbers)
        self.kept += [walk, *[x for x in operands if self.region(x) is None]]
        places = [self.place(x.data_ptr()) for x in (to, *operands)]
        words = [*places, (None, ctypes.addressof(walk))]
        self.calls.append(KernelCall(native.entry(name), words, self.step))
        return to

    def copied(self, x: Tensor, to: Tensor) -> Tensor:
        """Record a copy of x, broadcast and converted."""
        if x.dtype != to.dtype:
            return self.joined(CONVERT, to, x, x)
        if x.itemsize > 4:
            raise NotNative(f"it copies {x.dtype}")
        return self.fill("copy", 0, to, x)

    def joined(self, how: int, to: Tensor, *operands: Tensor) -> Tensor:
        """Record arithmetic on floats of one dtype."""
        dtypes = {x.dtype for x in operands}
        if len(dtypes) > 1 or not {*dtypes, to.dtype} <= {torch.float16, torch.float32}:
            raise NotNative("its values are no floats of one dtype")
        return self.fill("elementwise", how, to, *operands)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch imports its compiler, 800 modules, when the mode is first used."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        record, kwargs = RECORDED.get(func), kwargs or {}
        if record is not None:
            return record(self, *args, **kwargs)
        if func is _aten.empty.memory_format:
            return self.own(func(*args, **kwargs))
        if func.is_view or func is _aten._unsafe_view.default:
            return func(*args, **kwargs)
        raise NotNative(f"torch computes it: {func}")


def _axes(*tensors: Tensor) -> list[tuple[int, ...]]:
    """For each axis its size, and its step in bytes in each tensor; as few axes as possible."""
    merged: list[tuple[int, ...]] = []
    for axis, size in enumerate(tensors[0].shape):
        steps = [x.stride(axis) * x.itemsize for x in tensors]
        if merged and all(a == b * size for a, b in zip(merged[-1][1:], steps, strict=True)):
            size *= merged.pop()[0]
        if size > 1:
            merged.append((size, *steps))
    return merged or [(1, *[x.itemsize for x in tensors])]


# --- what torch is asked for ----------------------------------------------------------------------


def _clone(recorder: Recorder, x: Tensor, memory_format=torch.preserve_format) -> Tensor:
    return recorder.copied(x, recorder.own(torch.empty_like(x, memory_format=memory_format)))


def _to_copy(recorder: Recorder, x: Tensor, dtype: torch.dtype) -> Tensor:
    return recorder.copied(x, recorder.own(torch.empty(x.shape, dtype=dtype)))


def _cat(recorder: Recorder, tensors: list[Tensor], dim: int = 0) -> Tensor:
    first, begin = tensors[0], 0
    shape = [*first.shape]
    shape[dim] = sum(x.shape[dim] for x in tensors)
    made = recorder.own(torch.empty(shape, dtype=first.dtype))
    for x in tensors:
        part = made.narrow(dim, begin, x.shape[dim])
        if x.dtype != made.dtype or x.shape != part.shape:
            raise NotNative("its parts differ")
        recorder.copied(x, part)
        begin += x.shape[dim]
    return made


def _repeat(recorder: Recorder, x: Tensor, repeats: list[int]) -> Tensor:
    x = x[(None,) * (len(repeats) - x.dim())]
    made = recorder.own(torch.empty([*map(int.__mul__, repeats, x.shape)], dtype=x.dtype))
    turns = [n for pair in zip(repeats, x.shape, strict=True) for n in pair]
    for axis in range(len(repeats)):
        x = x.unsqueeze(2 * axis)
    recorder.copied(x, made.view(turns))
    return made


def _arithmetic(how: int) -> Callable[..., Tensor]:
    def record(recorder: Recorder, x: Tensor, y: Tensor) -> Tensor:
        shape = np.broadcast_shapes(x.shape, y.shape)  # torch's imports sympy
        return recorder.joined(how, recorder.own(torch.empty(shape, dtype=x.dtype)), x, y)

    return record


RECORDED: dict[Any, Callable[..., Tensor]] = {
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
    _aten.copy_.default: lambda recorder, to, x: recorder.copied(x, to),
    _aten.cat.default: _cat,
    _aten.repeat.default: _repeat,
    _aten.add.Tensor: _arithmetic(ADD),
    _aten.sub.Tensor: _arithmetic(SUB),
    _aten.mul.Tensor: _arithmetic(MUL),
    _aten.div.Tensor: _arithmetic(DIV),
}
