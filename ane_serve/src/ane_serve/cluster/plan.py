"""Plan a model on several machines: the layers of each, bytes over the network, speed limits.

A machine's time for a token is taken as its bytes of weights, which is what a token costs to read.
A token makes two hops to every machine but the host's, there and back: Ray hands small results on
through the process that asked for them.

Letters: C hidden size, T tokens of a prefill call.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ane_book.conversion.plan import Plan
from ane_book.conversion.plan.report import listed
from ane_book.errors import InvalidInput
from ane_serve.cluster.layout import cut

LINKS = {"1 Gbit/s": 1e9 / 8, "10 Gbit/s": 1e10 / 8}  # bytes/s
HOPS = {"0.1 ms": 1e-4, "0.5 ms": 5e-4}  # seconds one way: a wire, and what a call takes beside


@dataclass(frozen=True)
class Machines:
    """A plan cut over machines, the host's first, which has the head as well.

    asked: the number of machines asked for. layers: of every machine that has some. weights: bytes
    of them; the first one's include the head's.
    """

    plan: Plan
    asked: int
    layers: tuple[range, ...]
    weights: tuple[int, ...]

    @property
    def far(self) -> int:
        """The number of machines beside the host's."""
        return len(self.layers) - 1

    @property
    def token_bytes(self) -> int:
        """Bytes over the network for a token: its hidden state, fp16, to each machine and back."""
        return 2 * self.far * 2 * self.plan.config.hidden_size

    @property
    def gain(self) -> float:
        """The most that all machines' tokens/s together can be, as a multiple of one machine's:
        all weights over those of the largest range."""
        return sum(self.weights) / max(self.weights)

    def to_json(self) -> dict:
        """The plan as plain JSON values; sizes in bytes."""
        each = zip(self.layers, self.weights, strict=True)
        return {
            "each": [{"layers": [own.start, own.stop], "weight_bytes": size} for own, size in each],
            "network_bytes_per_token": self.token_bytes,
            "hops_per_token": 2 * self.far,
            "most_gain": self.gain,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The plan as pairs of heading and text; a heading stands on its first line alone."""
        return [
            *listed("machines", _machines(self)),
            *listed("network", _network(self)),
            *listed("together", _together(self)),
        ]


def split(plan: Plan, machines: int) -> Machines:
    """Cut a plan's layers over machines; raises InvalidInput for what cannot be cut."""
    if not plan.head:
        raise InvalidInput(f"{plan.config.architecture} generates no text: it runs on one machine")
    if machines < 1:
        raise InvalidInput(f"machines must be 1 or more, not {machines}")
    groups = [(layers, sum(p.bytes for p in programs)) for layers, programs in plan.groups()]
    head = sum(program.bytes for program in plan.head)
    ranges = cut([size for _, size in groups], machines, head)
    weights = [sum(groups[i][1] for i in own) for own in ranges]
    layers = [range(groups[own[0]][0].start, groups[own[-1]][0].stop) for own in ranges]
    return Machines(plan, machines, tuple(layers), (weights[0] + head, *weights[1:]))


# --- as lines


def _machines(split: Machines) -> Iterator[str]:
    for i, (layers, weights) in enumerate(zip(split.layers, split.weights, strict=True)):
        more = ", the head and the host" if i == 0 else ""
        yield f"{i + 1}: layers {layers.start} to {layers.stop - 1}{more}: {weights / 1e6:,.1f} MB"
    if len(split.layers) < split.asked:
        need = sum(program.bytes for program in split.plan.shards) // split.asked
        yield (
            f"{split.asked - len(split.layers)} of {split.asked} have nothing to do: a machine "
            f"takes whole programs; --shard-limit {-(-need // 10**6)}MB or less makes more of them"
        )


def _network(split: Machines) -> Iterator[str]:
    token, few = split.token_bytes, min(split.plan.recipe.prefill, split.plan.recipe.context)
    if not split.far:
        yield "nothing: one machine"
        return
    least = "at least " if split.plan.has_choice else ""
    yield f"{least}{token:,} bytes a token, {few * token:,} for {few} tokens of a prompt"
    for name, rate in LINKS.items():
        # every machine's link carries a token's hidden state in and out, the host's those of all
        yield f"{name}: at most {rate / (token / 2):,.0f} tokens/s either way"
    for name, hop in HOPS.items():
        yield (
            f"{name} a hop, {2 * split.far} hops: {2e3 * split.far * hop:.1f} ms a token, so at "
            f"most {1 / (2 * split.far * hop):,.0f} tokens/s of one answer"
        )


def _together(split: Machines) -> Iterator[str]:
    if not split.far:
        return
    yield (
        f"{len(split.layers)} answers at once have at most {split.gain:.2f} times the tokens/s of "
        "one machine; one answer alone has no more than there"
    )
