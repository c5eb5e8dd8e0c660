"""Open sizes, which converters compute with many small integer ops, each group as one function."""

from collections.abc import Callable

from mlprogram.kernels.graph import Match, Unfit
from mlprogram.kernels.pattern import Const, either, op
from mlprogram.kernels.plainly import plainly
from mlprogram.ops import OPS
import torch
from torch import Tensor

SHAPE = op("shape", "shape", x="x")
CHOSEN = op("gather", "gather", x=either(op("cast", x=SHAPE), SHAPE), indices=Const("index"))
SIZE = (op("cast", x=CHOSEN), CHOSEN)

WANTED = op("select", a=SHAPE, b="sizes", cond=op("equal", x="sizes", y=-1))
EXPANDED = (op("tile", "tile", x="x", reps=op("real_div", x=WANTED, y=SHAPE)),)

LARGEST = 32767  # that every integer type on the way has


def prepare(match: Match) -> tuple[list, Callable]:
    """Prepare one size of a shape: `shape` and `gather`, either of which a cast may follow."""
    index, made = match.known("index"), match.graph.types[match.result]
    axis, batch = match.get("gather", "axis", 0), match.get("gather", "batch_dims", 0)
    if index.type.shape != () or made.shape != () or (axis, batch) != (0, 0):
        raise Unfit("it is more than one size")
    if made.dtype not in ("int16", "uint16", "int32"):
        raise Unfit(f"it becomes {made.dtype}")
    place, dtype = int(match.number("index")), match.graph.constants.dtype(made)
    plain = plainly(match, [match["x"]])

    def run(x: Tensor) -> Tensor:
        if not 0 <= place < x.dim() or x.shape[place] > LARGEST:
            return plain(x)
        return torch.tensor(x.shape[place], dtype=dtype)

    return [match["x"]], run


def prepare_expanded(match: Match) -> tuple[list, Callable]:
    """Prepare torch's `expand`: broadcast x to some sizes, of which -1 keeps x's own."""
    operands = [match["x"], match["sizes"]]
    plain = plainly(match, operands)

    def run(x: Tensor, sizes: Tensor) -> Tensor:
        wanted = sizes.tolist() if sizes.dim() == 1 else []
        if len(wanted) != x.dim() or 0 in x.shape or min(wanted, default=-1) < -1:
            return plain(x, sizes)
        pairs = zip(wanted, x.shape, strict=True)
        return OPS["tile"].function(x, [1 if n == -1 else n // m for n, m in pairs])

    return operands, run
