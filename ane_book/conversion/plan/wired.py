"""The bytes of memory that a bundle's loaded programs hold on a device: weights, caches, adapter.

The weights are counted twice: once for each package, as if its functions shared them, and once for
each loaded function, as Core ML is reported to hold them (claim `functions-memory`). Both stand in
a plan, since no machine of this project could measure which is true.

Taught in the chapters "From a layer to packages" and "Shipping".
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ane_book.models import find

if TYPE_CHECKING:
    from ane_book.conversion.plan import Plan
    from ane_book.conversion.plan.programs import Program


@dataclass(frozen=True)
class WiredBytes:
    """What the loaded programs of a plan hold, in bytes.

    shared: the weights, each package once. copied: the weights, once for each of `functions`, all
    functions of all packages, which a session loads. caches: of one conversation in the longest
    cache, kept in states or by the host, with tails and memory. adapter: of the inputs that the
    host keeps for a LoRA adapter. The host's embedding is not in it: it is mapped, and the system
    can drop its pages.
    """

    functions: int
    shared: int
    copied: int
    caches: int
    adapter: int = 0

    @property
    def least(self) -> int:
        """The bytes in all if the functions of a package share its weights."""
        return self.shared + self.caches + self.adapter

    @property
    def most(self) -> int:
        """The bytes in all if every loaded function holds a copy."""
        return self.copied + self.caches + self.adapter

    def numbers(self) -> dict[str, int]:
        """The parts and both sums, for JSON."""
        return {**asdict(self), "least": self.least, "most": self.most}


def wired_bytes(plan: "Plan") -> WiredBytes:
    """Count them. Experts that are programs of their own are all counted as loaded."""
    counts = [(_functions(plan, program), program.bytes) for program in plan.programs]
    return WiredBytes(
        functions=sum(count for count, _ in counts),
        shared=plan.weight_bytes,
        copied=sum(count * size for count, size in counts),
        caches=plan.kept_bytes(held=True),
        adapter=plan.adapter_bytes,
    )


def _functions(plan: "Plan", program: "Program") -> int:
    """The number of functions that a program's package has."""
    if find(plan.config.architecture).task != "text-generation":
        return len(encode_functions(plan.recipe.context))
    return len(plan.recipe.calls if program.has_cache else plan.recipe.widths)


def encode_functions(context: int) -> dict[str, int]:
    """The functions of an encoder's packages, and T, the tokens that a call of each takes.

    One for each length of a call: 32, 128, 512, ... tokens, and the whole context.
    """
    lengths: list[int] = []
    while (length := 32 * 4 ** len(lengths)) < context:
        lengths.append(length)
    return {f"encode_{length}": length for length in [*lengths, context]}
