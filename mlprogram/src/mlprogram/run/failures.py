"""What fails in an op, told in terms of the program: which op, where, and what it was given.

An op is a small function on tensors. It does not check its inputs; torch does, and says so in words
that fit the function. `Failures` turns whatever escapes from an op, while it is compiled or run,
into one InvalidPackage that names the op. It costs nothing until something fails: the generated
source has one line an op, and the traceback knows the line.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
import os
import time
from types import FrameType, TracebackType

from mlprogram.analysis.constants import torch_dtype
from mlprogram.errors import InvalidInput, InvalidPackage, MLProgramError
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.values import Constant, TensorType
import torch

__all__ = ["MAX_TURNS", "Failures", "turns"]

#: Turns that all loops of one call may take together. A loop of a model goes over the steps of a
#: sequence, thousands at most; one that still runs here waits for something that never comes.
MAX_TURNS = 1 << 15

#: The environment variable that says how many seconds they may take, inf for any number: 32,768
#: turns of a heavy body are days.
LIMIT = "MLPROGRAM_LOOP_SECONDS"

#: What no package can cause: errors that say their reason, and mistakes in this library.
OURS = (MLProgramError, Warning, NameError, ImportError)

SHOWN = 300  # characters of a foreign error's message, or of the list of inputs


def turns() -> Iterator[int]:
    """What the loops of one call draw from; raises LookupError when it is used up."""
    seconds = _seconds()
    end = time.monotonic() + seconds
    for turn in range(MAX_TURNS):
        if time.monotonic() > end:
            raise LookupError(f"a loop still runs after {seconds:g} s; {LIMIT} sets more, or inf")
        yield turn
    raise LookupError(f"a loop still runs after {MAX_TURNS:,} turns (failures.MAX_TURNS)")


def _seconds() -> float:
    """How long the loops of one call may run: 600 s, or what the environment says."""
    said = os.environ.get(LIMIT, "600")
    try:
        return float(said)
    except ValueError:
        raise InvalidInput(f"{LIMIT} must be a number of seconds, or inf; not {said!r}") from None


class Failures:
    """The ops of a function by the lines of its generated source.

    variables: the local variable of each value.
    """

    def __init__(self, function: Function):
        self.function = function
        self.variables: dict[str, str] = {}
        self.operations: dict[str, Operation] = {}  # by line, without its indentation
        self.sources: dict[str, str] = {}  # by the file name that a traceback gives

    def lines(self, operation: Operation, made: Iterable[str]) -> list[str]:
        """The lines of an op, as they are made. Raises InvalidPackage when they cannot be."""
        with self.preparing(operation):
            lines = list(made)
        for line in lines:  # an op in a nested block has its lines here before the outer one
            self.operations.setdefault(line.strip(), operation)
        return lines

    @contextmanager
    def preparing(self, operation: Operation) -> Iterator[None]:
        """Raises InvalidPackage for what fails while an op is prepared inside."""
        try:
            yield
        except OURS:
            raise
        except Exception as error:
            raise self._explained(error, operation, None) from error

    def file(self, source: str) -> str:
        """A file name to compile `source` under."""
        name = f"<function {self.function.name!r}, {len(self.sources)}>"
        self.sources[name] = source
        return name

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raises InvalidPackage for what fails in an op that runs inside."""
        try:
            yield
        except OURS:
            raise
        except Exception as error:
            place = self._innermost(error.__traceback__)
            if place is None:  # not in the generated source: ours to blame
                raise
            raise self._explained(error, *place) from error

    def check_result(self, name: str, value: object, declared: TensorType, lift: bool) -> None:
        """Raises InvalidPackage for an output that is not what the program declares."""
        if not _fits(value, declared, lift):
            raise InvalidPackage(
                f"function {self.function.name!r}: output {name!r} is declared as {declared}, and "
                f"its ops make a {_type(value)}"
            )

    def name_the_first(
        self, error: InvalidPackage, values: Iterator[tuple[str, object]], lift: bool
    ) -> None:
        """Put the first op before a failure that makes something else than it declares.

        values: (name, value) of every op in order, from another run, up to where that fails too.
        """
        if type(error.__cause__) in (MemoryError, LookupError):  # no room, or no time for that
            return
        makers = {name: (o, t) for o in self.function.operations() for name, t in o.outputs}
        with suppress(Exception):
            for name, value in values:
                if name not in makers:
                    continue
                operation, declared = makers[name]
                if not _fits(value, declared, lift):
                    error.args = (
                        f"function {self.function.name!r}, "
                        f"{_place(operation, self.function.block)} makes a {_type(value)} for "
                        f"{name!r}, declared as {declared}; from that: {error}",
                    )
                    return

    def _innermost(self, trace: TracebackType | None) -> tuple[Operation | None, FrameType] | None:
        """The op at the last line of generated source that was entered, and that line's frame."""
        found = None
        while trace is not None:
            frame = trace.tb_frame
            source = self.sources.get(frame.f_code.co_filename)
            if source is not None:
                line = source.splitlines()[trace.tb_lineno - 1].strip()
                found = self.operations.get(line), frame
            trace = trace.tb_next
        return found

    def _explained(
        self, error: Exception, operation: Operation | None, frame: FrameType | None
    ) -> InvalidPackage:
        where = f"function {self.function.name!r}"
        given = ""
        if operation is not None:
            where += f", {_place(operation, self.function.block)}"
            given = _shortened(", ".join(self._inputs(operation, frame)))
        what = str(error).strip().split("\n")[0] or "no reason given"
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            what = f"not enough memory ({what})"
        return InvalidPackage(
            f"{where} cannot run on {given or 'its inputs'}: {type(error).__name__}: "
            f"{_shortened(what)}; the program is damaged, or not made for such inputs"
        )

    def _inputs(self, operation: Operation, frame: FrameType | None) -> Iterator[str]:
        """The inputs of an op: what it got where that is known, else what was declared."""
        declared = {name: t for o in self.function.operations() for name, t in o.outputs}
        known = frame.f_locals if frame else {}
        for key, items in operation.inputs.items():
            for item in items:
                if isinstance(item, Constant):
                    yield f"{key}={item.type}"
                    continue
                value = known.get(self.variables.get(item, ""))
                type_ = _type(value) if isinstance(value, torch.Tensor) else declared.get(item)
                yield f"{key}={item!r} {type_ or ''}".rstrip()


def _fits(value: object, declared: TensorType, lift: bool) -> bool:
    """Whether a value is what the program declares."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, dict | str | int)  # of a classifier
    sizes = zip(declared.shape, value.shape, strict=False)
    same = value.dim() == len(declared.shape) and all(a in (None, b) for a, b in sizes)
    # one open size is also how coremltools writes a shape of which nothing is known
    fits = same or declared.shape == (None,)
    return fits and value.dtype == torch_dtype(declared.dtype, lift)


def _type(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}"


def _place(operation: Operation, block: Block) -> str:
    """The op and its position, in the block that holds it; or a group of ops."""
    blocks = [("", block)]
    for outer, inner in blocks:
        for position, found in enumerate(inner.operations):
            if found is operation:
                count = len(inner.operations)
                name = f"op {operation.type!r} ({operation.name!r}"
                return f"{name}, operation {position} of {count}{outer})"
            blocks += [(f" in a block of {found.name!r}", nested) for nested in found.blocks]
    return f"ops that run as one {operation.type!r} ({operation.name!r})"  # see kernels/table.py


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"
