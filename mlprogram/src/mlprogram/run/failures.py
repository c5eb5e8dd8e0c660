"""Turn an exception in an op into an InvalidPackage that names the op, its place and its inputs.

Ops do not check their inputs; torch does, but its messages know nothing of the program. `Failures`
catches whatever an op raises while it is compiled or run. It costs nothing until something fails:
the generated source has one line per op, and the traceback has the line.
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

#: The most iterations of all loops of a call together. A model's loop goes over the steps of a
#: sequence, thousands at most; one that exceeds this never ends.
MAX_TURNS = 1 << 15

#: The environment variable with the most seconds that they may take, or inf: 32,768 iterations of a
#: heavy body would take days.
LIMIT = "MLPROGRAM_LOOP_SECONDS"

#: Exceptions that are passed on: they already say their reason, or are bugs of this library.
OURS = (MLProgramError, Warning, NameError, ImportError)

SHOWN = 300  # characters of a foreign error's message, or of the list of inputs


def turns() -> Iterator[int]:
    """Count the iterations of all loops of a call; raises LookupError beyond the limits."""
    seconds = _seconds()
    end = time.monotonic() + seconds
    for turn in range(MAX_TURNS):
        if time.monotonic() > end:
            raise LookupError(f"a loop still runs after {seconds:g} s; {LIMIT} sets more, or inf")
        yield turn
    raise LookupError(f"a loop still runs after {MAX_TURNS:,} turns (failures.MAX_TURNS)")


def _seconds() -> float:
    """The time limit of the loops of a call: 600 s, or what the environment variable says."""
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
        """Generate and record the lines of an op. Raises InvalidPackage if that fails."""
        with self.preparing(operation):
            lines = list(made)
        for line in lines:  # an op in a nested block has its lines here before the outer one
            self.operations.setdefault(line.strip(), operation)
        return lines

    @contextmanager
    def preparing(self, operation: Operation) -> Iterator[None]:
        """A context that raises InvalidPackage if the preparation of an op in it fails."""
        try:
            yield
        except OURS:
            raise
        except Exception as error:
            raise self._explained(error, operation, None) from error

    def file(self, source: str) -> str:
        """A file name to compile `source` under: the same one each time, for other sizes too."""
        for name, kept in self.sources.items():
            if kept == source:
                return name
        name = f"<function {self.function.name!r}, {len(self.sources)}>"
        self.sources[name] = source
        return name

    @contextmanager
    def explained(self) -> Iterator[None]:
        """A context that raises InvalidPackage if an op that runs in it fails."""
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
        """Raise InvalidPackage for an output that is not what the program declares."""
        if not _fits(value, declared, lift):
            raise InvalidPackage(
                f"function {self.function.name!r}: output {name!r} is declared as {declared}, and "
                f"its ops make a {_type(value)}"
            )

    def name_the_first(
        self, error: InvalidPackage, values: Iterator[tuple[str, object]], lift: bool
    ) -> None:
        """Prefix an error's message with the first op whose result is not what it declares.

        values: (name, value) of every op in order, from a second run up to where it fails again.
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
        """The op of the innermost frame of generated source in a traceback, and that frame."""
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
        """Describe the inputs of an op: the values' types if known, else the declared ones."""
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
    fits = value.shape == declared.shape
    if not fits:
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
