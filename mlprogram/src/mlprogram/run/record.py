"""Record what steps of a plan ask of torch and of the compiled kernels, for `stretches.py`.

The functions of the steps are called once, on tensors whose memory nobody fills. Views cost
nothing, copies and simple arithmetic have kernels in `c/run.c` and `c/whole.c` (`asked.py`), and
calls of kernels are what they are. Whatever else torch is asked for, only torch can do. Whole
numbers that follow from sizes alone are computed, so that they cost nothing later.
"""

from collections.abc import Mapping, Sequence
import ctypes
import struct
from typing import Any

from mlprogram.analysis.constants import TORCH
from mlprogram.kernels import native
from mlprogram.kernels.compiled import SIGNATURES, Pointer
from mlprogram.ops.tensor_transformation import write_slice
from mlprogram.run.asked import (
    CONVERT,
    LOOKS,
    PLAIN,
    RECORDED,
    SIZES,
    NotNative,
    entry_of,
    merged_axes,
)
from mlprogram.run.calls import ConstantMemory, KernelCall, Place, Region, Written
from mlprogram.run.plan import Argument, ExecutionPlan, Name, Step
from mlprogram.run.slices import record_slice
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WHOLE = frozenset([torch.int16, torch.uint16, torch.int32, torch.int64])  # of sizes
MOST_SIZE = 32767  # so that nothing wraps around in any of them
#: How numpy spells the dtypes that it has.
DTYPES = {
    dtype: torch.empty(0, dtype=dtype).numpy().dtype.str
    for dtype in TORCH.values()
    if dtype != torch.bfloat16
}
LARGEST = 1 << 30  # bytes of all values of a stretch; beside so many, Python's time is nothing

_aten = torch.ops.aten


class Recorder(TorchDispatchMode):
    """Records steps. shapes: of values from outside whose sizes the program leaves open.

    steps: those that were recorded. calls: what they ask of compiled code, in order.
    values: what they made, or were given, by name, of memory that nobody fills. states: the same.
    known: the values that follow from sizes, also in `values`.
    regions: the memory of all of these, by index. by_address: the same.
    moved: regions that are a part of another one, and at which byte of it (`copies.py`).
    updated: states that are written at known positions.
    masks: where it is noted which slots a mask of attention leaves open.
    """

    def __init__(self, plan: ExecutionPlan, shapes: Mapping[str, tuple[int, ...]] | None = None):
        super().__init__()
        self.plan, self.shapes = plan, shapes or {}
        self.known: dict[str, Tensor] = {}
        self.is_idle = False  # while torch computes what follows from sizes
        self.values: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.regions: list[Region] = []
        self.by_address: dict[int, Region] = {}
        self.calls: list[KernelCall] = []
        self.moved: dict[int, tuple[Region, int]] = {}
        self.steps: list[Step] = []
        self.updated: dict[str, None] = {}
        self.masks: dict[tuple[Place, tuple[int, ...]], Place] = {}
        self.bytes = 0  # of all regions

    # --- steps --------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        """Record a step. Raises NotNative, and forgets it, if that is impossible."""
        self.step, self.is_idle = step, False
        self.before = [len(made) for made in self._all()]
        native.recording.to = self.kernel
        try:
            with self:
                made = self.run(step)
                if any(x.dtype not in DTYPES for x in made):
                    raise NotNative("numpy lacks its dtype")
                self.values |= zip(step.results, made, strict=True)
        except Exception as error:  # what the step itself raises, it raises again when it runs
            self.forget()
            if isinstance(error, NotNative):
                raise
            raise NotNative("it cannot run") from error
        finally:
            native.recording.to = None
        self.steps.append(step)

    def _all(self) -> list:
        """What steps add to."""
        lists = [self.steps, self.calls, self.regions]
        return [*lists, self.values, self.states, self.known, self.updated, self.masks]

    def forget(self) -> None:
        """Forget the last step, and what it was given first."""
        for made, count in zip(self._all(), self.before, strict=True):
            drop_last = made.popitem if isinstance(made, dict) else made.pop
            while len(made) > count:
                drop_last()
        self.by_address = {b.tensor.untyped_storage().data_ptr(): b for b in self.regions}
        self.bytes = sum(b.tensor.nbytes for b in self.regions)

    def described(self) -> list:
        """What the last step has recorded, as numbers, for another size to be compared with."""
        calls = [(c.entry, c.arguments) for c in self.calls if c.step is self.step]
        made = [self.values[name] for name in self.step.results]
        known = [self.known[name].tolist() for name in self.step.results if name in self.known]
        places = [(self.owner(x), x.shape, x.stride(), int(x.storage_offset())) for x in made]
        return [calls, places, known]

    def run(self, step: Step) -> Sequence[Tensor]:
        """What a step makes. Raises NotNative for what only torch can do, or only Python."""
        type_ = step.operation.type
        if self.follows_from_sizes(step) and (made := self.computed_now(step)) is not None:
            return [made]
        if type_ == "read_state":
            return [self.state(step.state)]
        if type_ == "write_state" and step.stored is None:
            return []
        if type_ in ("slice_by_index", "slice_update") and self.is_placed_late(step):
            return [record_slice(self, step)]
        if step.function is None and type_ == "slice_update":
            view = {a.key: self.argument(a) for a in step.arguments if a.key != "x"}
            self.updated[step.state] = None
            write_slice(self.state(step.state), **view)
            return [self.state(step.state)]
        if step.function is None:
            raise NotNative("it replaces a state" if step.stored else "it has blocks")
        sizes_known = step.kernel == "expand" and step.arguments[1].values[0].name in self.known
        if (step.kernel in LOOKS and not sizes_known) or (not step.kernel and type_ not in PLAIN):
            raise NotNative("torch computes it")
        given = [(a.key, self.argument(a)) for a in step.arguments]
        made = step.function(*[v for k, v in given if not k], **{k: v for k, v in given if k})
        return made if type_ == "split" else [made]

    def argument(self, argument: Argument) -> Any:
        """The value of an argument, or a list of them if MIL takes several."""
        if argument.static and self.is_known_late(argument):
            raise NotNative(f"its {argument.key} is known at run time only")
        found = [self.value(v.name) if isinstance(v, Name) else v for v in argument.values]
        if argument.static:
            found = [v.tolist() if isinstance(v, Tensor) else v for v in found]
        return found if argument.key == "values" or len(found) > 1 else found[0]

    def is_known_late(self, argument: Argument) -> bool:
        """Whether it is known at run time only."""
        return any(isinstance(v, Name) and v.name not in self.known for v in argument.values)

    def is_placed_late(self, step: Step) -> bool:
        """Whether a static argument, such as where a slice begins, is known at run time only."""
        return any(a.static and self.is_known_late(a) for a in step.arguments)

    def follows_from_sizes(self, step: Step) -> bool:
        """Whether what a step makes follows from sizes, in proportion to them."""
        kind = step.kernel or step.operation.type
        if kind not in SIZES or len(step.results) != 1:
            return False
        if kind in ("shape", "size"):
            return isinstance(step.arguments[0].values[0], Name)
        named = [a for a in step.arguments if any(isinstance(v, Name) for v in a.values)]
        if kind == "slice_by_index" and any(a.static for a in named):
            return False
        return len(named) < (2 if kind == "mul" else 9) and not any(map(self.is_known_late, named))

    def computed_now(self, step: Step) -> Tensor | None:
        """Compute it now; None if these are no whole numbers, or larger than sizes are."""
        given = {a.key: self.argument(a) for a in step.arguments}
        if step.function is None:
            return None
        self.is_idle = True
        made = step.function(given[""]) if "" in given else step.function(**given)
        read = [x for v in given.values() for x in (v if isinstance(v, list) else [v])]
        if step.kernel == "size" or step.operation.type == "shape":
            read = []
        read = [x for x in (made, *read) if isinstance(x, Tensor)]
        fits = all(x.dtype in WHOLE and x.long().abs().max() <= MOST_SIZE for x in read)
        if not self.region(made):  # it may be a part of a constant
            made = made.clone(memory_format=torch.contiguous_format)
        self.is_idle = False
        is_cast = step.operation.type == "cast"
        if not fits or (is_cast and not torch.equal(made.long(), read[-1].long())):
            return None
        if not self.region(made):
            self.own(made, is_known=True)
        self.known[step.results[0]] = made
        return made

    def value(self, name: str) -> Tensor:
        """A value that a step made, or that is given from outside."""
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
        shape = [n for n in self.shapes.get(name, type_.shape) if n is not None]
        if len(shape) < len(type_.shape) or type_.kind in ("list", "dictionary"):
            raise NotNative("a size is known at run time only")
        return self.own(torch.empty(shape, dtype=self.plan.dtype(type_)), name, is_state)

    # --- memory -------------------------------------------------------------------------------

    def own(
        self, tensor: Tensor, name: str = "", is_state: bool = False, is_known: bool = False
    ) -> Tensor:
        """Make the memory of a new tensor known."""
        self.bytes += tensor.nbytes
        if not tensor.numel() or self.bytes > LARGEST:
            raise NotNative("it is large" if tensor.numel() else "it has no values")
        if tensor.dtype not in DTYPES:
            raise NotNative("numpy lacks its dtype")
        self.regions.append(Region(tensor, len(self.regions), name, is_state, is_known))
        self.by_address[tensor.untyped_storage().data_ptr()] = self.regions[-1]
        return tensor

    def made(self, dtype: torch.dtype, *operands: Tensor) -> Tensor:
        """A new tensor of the shape to which operands are broadcast."""
        shape = np.broadcast_shapes(*[x.shape for x in operands])  # torch's imports sympy
        return self.own(torch.empty(shape, dtype=dtype))

    def region(self, tensor: Tensor) -> Region | None:
        """The memory that a tensor lies in; None if it is a constant."""
        return self.by_address.get(tensor.untyped_storage().data_ptr())

    def owner(self, tensor: Tensor) -> Region | ConstantMemory:
        """The memory that a tensor lies in."""
        return self.region(tensor) or ConstantMemory(tensor.untyped_storage().data_ptr(), tensor)

    def origin(self, tensor: Tensor) -> tuple[Region | None, int]:
        """The memory that a tensor lies in now, and at which byte of it."""
        region, at = self.region(tensor), int(tensor.storage_offset()) * tensor.itemsize
        if region is None or region.index not in self.moved:
            return region, at
        whole, offset = self.moved[region.index]
        return whole, offset + at

    def place(self, given: Tensor | native.Numbers | native.Weight | None) -> Place:
        """The memory that a kernel is given, and the offset in it."""
        if isinstance(given, Tensor):
            return self.owner(given), int(given.storage_offset()) * given.itemsize
        if isinstance(given, native.Numbers):
            return given.words, 0
        if given is None:
            return None, 0
        return ConstantMemory(given.address, given), 0

    # --- calls --------------------------------------------------------------------------------

    def kernel(self, name: str, given: tuple) -> int:
        """Record the call of a compiled kernel."""
        words: list[Place] = []
        for value, type_ in zip(given, SIGNATURES[name], strict=True):
            if type_ is Pointer:
                words += map(self.place, value if isinstance(value, tuple) else (value,))
            elif type_ is ctypes.c_float:
                words.append((None, *struct.unpack("q", struct.pack("d", value))))
            else:
                words.append((None, int(value)))
        if name == "attention":
            words += [*self.written(given[0], *words[2:5:2]), self.opened(given[0], words[6])]
            words.append((None, 0))  # all columns are in use
        self.calls.append(KernelCall(name, words, self.step))
        return 0

    def written(self, attention: native.Numbers, *cache: Place) -> list[Place]:
        """Where it is kept how many slots of its keys and of its values were written, of the first
        part of these; nowhere if they are no states, slot by slot."""
        _, _, depth, slots, *_ = attention.words
        tail = (slots, depth)
        for region, offset in cache:
            if not isinstance(region, Region) or not region.is_state:
                return [(None, 0)] * 2
            tensor = region.tensor
            if tensor.shape[-2:] != tail or offset % (tail[0] * tail[1] * tensor.itemsize):
                return [(None, 0)] * 2
        return [(Written(region.name), 0) for region, _ in cache if isinstance(region, Region)]

    def opened(self, attention: native.Numbers, mask: Place) -> Place:
        """Where the slots are noted that a mask leaves open, so that one call looks for them and
        not one in each layer. Nowhere for the memory of a state, which a step may write between."""
        if not isinstance(mask[0], Region) or mask[0].is_state:
            return None, 0
        shape = attention.words[3:7]  # slots, mask_rows, is_half with rounding
        if (mask, shape) not in self.masks:
            noted = torch.empty(sum(shape[:2]) + 1, dtype=torch.uint8)
            self.masks[mask, shape] = self.region(noted), 0
            words: list[Place] = [(attention.words, 0), mask, self.masks[mask, shape]]
            self.calls.append(KernelCall("mask_slots", words, self.step))
        return self.masks[mask, shape]

    def fill(self, name: str, how: int, to: Tensor, *operands: Tensor) -> Tensor:
        """Record `copy` or `elementwise`: operands, which are broadcast, to a tensor."""
        if not to.numel():
            return to
        axes = merged_axes(to, *[x.expand(to.shape) for x in operands])
        if name == "elementwise" and axes[-1][1] != to.itemsize:
            raise NotNative("it writes values apart")
        types = [native.TYPES.get(x.dtype, -1) for x in (operands[0], to)]
        head = (len(axes), to.itemsize, how, *types)
        rows = zip(*axes, strict=True)
        self.call(name, [to, *operands], [*head, *(number for row in rows for number in row)])
        return to

    def call(self, name: str, tensors: list[Tensor], numbers: list[int]) -> None:
        """Record the call of an entry of tensors, and of numbers that stay as they are."""
        words = [*map(self.place, tensors), (tuple(map(int, numbers)), 0)]
        self.calls.append(KernelCall(name, words, self.step))

    def copied(self, x: Tensor, to: Tensor) -> Tensor:
        """Record a copy of x, broadcast and converted."""
        if x.dtype != to.dtype:
            return self.joined(CONVERT, to, x, x)
        if x.itemsize > 8:
            raise NotNative(f"it copies {x.dtype}")
        return self.fill("copy", 0, to, x)

    def joined(self, how: int, to: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Record arithmetic, a comparison or a conversion, of values of one dtype."""
        return self.fill(entry_of(how, x, y, to), how, to, x, y)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch imports its compiler, 800 modules, when the mode is first used."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        record, kwargs = RECORDED.get(func), kwargs or {}
        if self.is_idle:
            return func(*args, **kwargs)
        if record is not None:
            return record(self, *args, **kwargs)
        if func is _aten.empty.memory_format:
            return self.own(func(*args, **kwargs))
        if func.is_view or func is _aten._unsafe_view.default:
            made = func(*args, **kwargs)
            self.check_views(made if isinstance(made, list | tuple) else [made], args[0])
            return made
        raise NotNative(f"torch computes it: {func}")

    def check_views(self, made: Sequence[Tensor], x: Tensor) -> None:
        """Raise NotNative if these are no views of x, as torch may say of `contiguous`, but copies
        of what no one has filled yet. A copy of a constant is another one."""
        storage = x.untyped_storage().data_ptr()
        is_copied = any(view.untyped_storage().data_ptr() != storage for view in made)
        if is_copied and self.region(x):
            raise NotNative("torch copies it")
