"""Record what steps of a plan ask of torch and of the compiled kernels, for `stretches.py`.

The functions of the steps are called once, on tensors whose memory nobody fills. Views cost
nothing, copies and simple arithmetic have kernels in `c/run.c` and `c/whole.c`, and calls of kernels are what they
are. Whatever else torch is asked for, only torch can do.
"""

from bisect import bisect, insort
from collections.abc import Callable, Sequence
import ctypes
from dataclasses import dataclass
import struct
from typing import Any

from mlprogram.kernels import native
from mlprogram.ops.tensor_transformation import write_slice
from mlprogram.run.plan import Argument, ExecutionPlan, Name, Step
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["KernelCall", "NotNative", "Recorder", "Region"]

#: Ops without a kernel that may be recorded: they look at shapes alone, and never at values.
PLAIN = frozenset(
    [
        "add", "cast", "concat", "equal", "expand_dims", "flatten2d", "greater", "greater_equal",
        "identity", "less", "less_equal", "maximum", "minimum", "mul", "not_equal", "real_div",
        "reshape", "select", "slice_by_index", "slice_by_size", "slice_update", "split", "squeeze",
        "stack", "sub", "tile", "transpose",
    ]
)  # fmt: skip

OPEN = frozenset(["size", "expand"])  # kernels that look at values
LARGEST = 1 << 30  # bytes of all values of a stretch; beside so many, Python's time is nothing

#: Of `elementwise` in run.c and of `apply` in whole.c.
ADD, SUB, MUL, DIV, CONVERT, EQUAL, UNEQUAL, LESS, LESS_EQUAL, LEAST, MOST = range(11)

FLOATS = frozenset([torch.float16, torch.float32])

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


Place = tuple[Region | None, int]  # a region and an offset in it, or an address or number


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
        if type_ in ("slice_by_index", "slice_update"):
            if any(a.static and _computed(a) for a in step.arguments):
                return [self.slice(step)]
        if step.function is None and type_ == "slice_update":
            view = {a.key: self.argument(a) for a in step.arguments if a.key != "x"}
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
        if argument.static and _computed(argument):
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

    def slice(self, step: Step) -> Tensor:
        """Record a slice at a position that is known at run time only, or an update there."""
        given = {a.key: a for a in step.arguments}
        places = [self.position(given.pop(key)) for key in ("begin", "end")]
        known = {key: self.argument(a) for key, a in given.items() if a.static}
        x = self.state(step.state) if step.function is None else self.argument(given["x"])
        reads, axes = step.operation.type == "slice_by_index", x.dim()
        if reads:
            part = torch.empty(step.operation.outputs[0][1].sizes, dtype=x.dtype)
        else:
            part = self.argument(given["update"])
            if step.function is not None:  # not in place
                x = x.clone(memory_format=torch.contiguous_format)
        masks = [known.get(key) or [False] * axes for key in MASKS]
        steps = known.get("stride") or [1] * axes
        if any(p.shape != (axes,) for p in places) or min(steps, default=1) < 1:
            raise NotNative("it has not one position for each axis, or goes backwards")
        if part.dtype != x.dtype or part.dim() != axes - sum(masks[2]):
            raise NotNative("what it writes or makes has another type")
        sizes = iter(zip(part.shape, part.stride(), strict=True))
        numbers = [axes, x.itemsize, reads]
        for axis, (step_, *mask) in enumerate(zip(steps, *masks, strict=True)):
            size, stride = (1, 0) if mask[2] else next(sizes)
            bits = sum(bit << i for i, bit in enumerate(mask))
            numbers += [x.shape[axis], x.stride(axis) * x.itemsize, step_, bits]
            numbers += [size, stride * x.itemsize]
        self.call("slice", [x, part, *places], numbers)
        return part if reads else x

    def position(self, argument: Argument) -> Tensor:
        """Where slices begin or end, as int32."""
        if not _computed(argument):
            return torch.from_numpy(np.array(self.argument(argument), np.int32))
        if len(argument.values) > 1:
            raise NotNative(f"its {argument.key} is several values")
        place = self.value(argument.values[0].name).contiguous()
        if place.dtype != torch.int32:
            raise NotNative(f"its {argument.key} is {place.dtype}")
        return place

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

    def made(self, dtype: torch.dtype, *operands: Tensor) -> Tensor:
        """A new tensor of the shape to which operands are broadcast."""
        shape = np.broadcast_shapes(*[x.shape for x in operands])  # torch's imports sympy
        return self.own(torch.empty(shape, dtype=dtype))

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
        self.calls.append(KernelCall(native.entry(name), words, self.step))
        return 0

    def fill(self, name: str, how: int, to: Tensor, *operands: Tensor) -> Tensor:
        """Record `copy` or `elementwise`: operands, which are broadcast, to a tensor."""
        if not to.numel():
            return to
        axes = _axes(to, *[x.expand(to.shape) for x in operands])
        if name == "elementwise" and axes[-1][1] != to.itemsize:
            raise NotNative("it writes values apart")
        types = [native.TYPES.get(x.dtype, -1) for x in (operands[0], to)]
        head = (len(axes), to.itemsize, how, *types)
        rows = zip(*axes, strict=True)
        self.call(name, [to, *operands], [*head, *(number for row in rows for number in row)])
        return to

    def call(self, name: str, tensors: list[Tensor], numbers: list[int]) -> None:
        """Record the call of an entry of tensors, and of numbers that stay as they are."""
        block = (ctypes.c_int64 * len(numbers))(*numbers)
        self.kept += [block, *[x for x in tensors if self.region(x) is None]]
        places = [self.place(x.data_ptr()) for x in tensors]
        words = [*places, (None, ctypes.addressof(block))]
        self.calls.append(KernelCall(native.entry(name), words, self.step))

    def copied(self, x: Tensor, to: Tensor) -> Tensor:
        """Record a copy of x, broadcast and converted."""
        if x.dtype != to.dtype:
            return self.joined(CONVERT, to, x, x)
        if x.itemsize > 8:
            raise NotNative(f"it copies {x.dtype}")
        return self.fill("copy", 0, to, x)

    def joined(self, how: int, to: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Record arithmetic, a comparison or a conversion, of values of one dtype."""
        floats = {x.dtype, to.dtype} <= FLOATS
        if x.dtype != y.dtype or not {x.dtype, to.dtype} <= native.TYPES.keys():
            raise NotNative(f"torch computes it, of {x.dtype} and {y.dtype}")
        if x.dtype in FLOATS and not floats and to.dtype != torch.bool:
            raise NotNative("torch makes whole numbers of floats")
        if x.dtype == torch.bool and how in (ADD, SUB, MUL) or how == DIV and not floats:
            raise NotNative("torch computes it, of no floats")
        return self.fill("elementwise" if floats else "apply", how, to, x, y)

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


MASKS = ("begin_mask", "end_mask", "squeeze_mask")


def _computed(argument: Argument) -> bool:
    """Whether it is known at run time only."""
    return any(isinstance(value, Name) for value in argument.values)


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


def _stack(recorder: Recorder, tensors: list[Tensor], dim: int = 0) -> Tensor:
    return _cat(recorder, [x.unsqueeze(dim) for x in tensors], dim)


def _arithmetic(how: int) -> Callable[..., Tensor]:
    def record(recorder: Recorder, x: Tensor, y: Tensor) -> Tensor:
        return recorder.joined(how, recorder.made(x.dtype, x, y), x, y)

    return record


def _comparison(how: int, swapped: bool = False) -> Callable[..., Tensor]:
    def record(recorder: Recorder, x: Tensor, y: Tensor) -> Tensor:
        x, y = (y, x) if swapped else (x, y)
        return recorder.joined(how, recorder.made(torch.bool, x, y), x, y)

    return record


def _extreme(how: int) -> Callable[..., Tensor]:
    arithmetic = _arithmetic(how)

    def record(recorder: Recorder, x: Tensor, y: Tensor) -> Tensor:
        if x.dtype in FLOATS:  # which of two zeros wins is torch's secret
            raise NotNative("torch computes it, of floats")
        return arithmetic(recorder, x, y)

    return record


def _where(recorder: Recorder, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if condition.dtype != torch.bool or x.dtype != y.dtype or x.itemsize > 8:
        raise NotNative("what it chooses from differs")
    made = recorder.made(x.dtype, condition, x, y)
    return recorder.fill("select", 0, made, condition, x, y)


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
    _aten.stack.default: _stack,
    _aten.where.self: _where,
    _aten.minimum.default: _extreme(LEAST),
    _aten.maximum.default: _extreme(MOST),
    _aten.eq.Tensor: _comparison(EQUAL),
    _aten.ne.Tensor: _comparison(UNEQUAL),
    _aten.lt.Tensor: _comparison(LESS),
    _aten.le.Tensor: _comparison(LESS_EQUAL),
    _aten.gt.Tensor: _comparison(LESS, swapped=True),
    _aten.ge.Tensor: _comparison(LESS_EQUAL, swapped=True),
}
