"""A plan as lines of text: what is made, what it takes, and what the evidence says of it.

Apple has published none of the limits for sizes of programs and axes, and no two sources agree, so
nothing here is enforced: a plan beyond one says so, with its grade and evidence
(`mlprogram.ane.claims`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ane_book.conversion.quantize.schemes import loss_of, scheme_warning
from ane_book.layout import Recurrent, Tail
from mlprogram.ane.claims import find

if TYPE_CHECKING:
    from ane_book.conversion.plan import Plan


#: Bytes of weights in one program.
PROGRAM = find("program-250mb")
#: Bytes of one weight file, from below.
FILE = (find("program-1gb"), find("program-2gb"))
SMALL = find("program-small")
#: Bytes of all programs of a model.
LOADED = find("loaded-3gb")
#: How memory grows with the functions that are loaded.
WIRED = find("functions-memory")
#: The longest axis of a tensor, from below.
AXIS = (find("axis-habit"), find("axis-most"))
#: The cost of a call, noted of a plan with more than MANY of them for a token.
CALLS = find("call-coreml")
MANY = 100

#: The assumption about a router whose choices are not known.
EVEN = "if every expert is chosen as often as any other"
Line = tuple[str, str]  # a heading, "" where it is that of the line above, and a text


def facts(plan: "Plan") -> Iterator[Line]:
    """The plan as lines."""
    config, recipe = plan.config, plan.recipe
    more = ", and more of it to calibrate" if recipe.is_calibrated else ""
    yield "model", f"{config.architecture}, {config.num_layers} layers"
    yield "recipe", f"{recipe.partition}, quant {recipe.quant}, head {recipe.quant_head}"
    quality = "as the source, rounded to fp16"
    if not recipe.is_plain:
        measured = loss_of(recipe.quant, recipe.quant_head)
        quality = f"{measured} on SmolLM2-135M; another model has to be measured"
    yield "quality", quality
    yield from listed("shards", _shards(plan))
    if plan.has_choice:
        expert_bytes = [program.bytes for program in plan.programs if program.expert is not None]
        yield "experts", f"{len(expert_bytes):,} programs: {_size(expert_bytes[0])} each"
    yield from listed("head", _heads(plan))
    yield "embedding", f"{_size(plan.embedding_bytes)}, fp16, kept by the host"
    if plan.per_layer_bytes:
        yield "own inputs", f"{_size(plan.per_layer_bytes)}, fp16, a row a token read by the host"
    if plan.head:
        yield "cache", f"{_size(plan.cache_bytes)}, for a context of {recipe.context}"
        if tails := plan.kept_bytes(Tail):
            kept = _size(plan.kept_bytes(Tail, held=True))
            yield "tails", f"{kept}, kept by the host; {_size(tails)} of it a call"
        if memory := plan.kept_bytes(Recurrent):
            yield "memory", f"{_size(memory)}, whatever the context"
    if plan.adapter_bytes:
        inputs = f"{_size(plan.adapter_bytes)} of inputs in every call, adapter or none"
        yield "adapter", f"slots of rank {recipe.lora_slots}: {inputs}"
    yield from listed("tiers", _tiers(plan))
    yield "programs", f"{len(plan.programs):,}, {_size(plan.weight_bytes)} of weights in all"
    yield _calls(plan)
    yield from listed("wired", _wired(plan))
    yield from listed("strategies", _strategies(plan))
    yield "to convert", f"about {plan.memory_bytes / 1e9:.1f} GB of memory{more}"
    yield from listed("limits", notes(plan))


def _calls(plan: "Plan") -> Line:
    K = plan.recipe.verify
    times = f"up to {K} tokens" if K else "token"
    if plan.has_choice:
        reads = f"{plan.calls():,.0f} dispatches, {_size(plan.read_bytes())} of weights"
        return "per token", f"{reads}, {EVEN}"
    if plan.head:
        return f"per {times}", f"{len(plan.programs)} dispatches in decode"
    return "per call", f"{len(plan.programs)} dispatches, up to {plan.recipe.context} tokens"


def _wired(plan: "Plan") -> Iterator[str]:
    """What the loaded programs hold on a device: both sides of a claim, and the claim."""
    wired = plan.wired
    parts = {"for caches": wired.caches, "for an adapter": wired.adapter}
    beside = " and ".join(f"{_size(size)} {what}" for what, size in parts.items() if size)
    if wired.copied == wired.shared:
        beside = f", {beside} among it" if beside else ""
        yield f"{_size(wired.least)}: each package has one function{beside}"
        return
    beside = f"; {beside} in either" if beside else ""
    yield (
        f"{_size(wired.most)} if each of {_counted(wired.functions, 'loaded function')} has a copy "
        f"of its weights, {_size(wired.least)} if those of a package share one{beside}"
    )
    yield WIRED.note("which of the two")


def _strategies(plan: "Plan") -> Iterator[str]:
    """A line for every strategy for experts."""
    plans, few = plan.strategies, min(plan.recipe.prefill, plan.recipe.context)
    for name, other in plans.items():
        one, several = (
            f"{_counted(other.calls(tokens), 'call')}, {_size(other.read_bytes(tokens))}"
            for tokens in (1, few)
        )
        programs = _counted(len(other.programs), "program")
        yield f"{name}: {programs}; {one} a token; {several} for {few} tokens"


def _tiers(plan: "Plan") -> Iterator[str]:
    """The smaller caches, where there are any, and what all of them have in common."""
    smaller = list(plan.tiers.items())[:-1]
    for slots, tier in smaller:
        yield f"{slots:,} slots: {_size(tier.cache_bytes)} of cache"
    if smaller:
        count = len(plan.recipe.widths) * len(plan.tiers)
        yield f"the same weights and dispatches in each; {count} functions over a cache"


def _heads(plan: "Plan") -> Iterator[str]:
    if plan.head:
        low, high = min(plan.splits), max(plan.splits)
        rows = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        sizes = [program.bytes for program in plan.head]
        several = f" in {len(sizes)} programs, the largest" if len(sizes) > 1 else ""
        yield f"{len(plan.splits)} parts of {rows} rows{several}: {_size(max(sizes))}"
    for pooled in plan.pooled:
        yield f"of pooled columns: {_size(pooled.bytes)}"


def _shards(plan: "Plan") -> Iterator[str]:
    """The shards in words."""
    trunk = [shard.bytes for shard in plan.shards if shard.trunk is not None]
    if trunk:
        yield f"{len(trunk)} programs of what is around experts, the largest: {_size(max(trunk))}"
        return
    for shard in plan.shards:
        several = f" in {len(shard.files)} files" if len(shard.files) > 1 else ""
        layers = f"layers {shard.layers.start} to {shard.layers.stop - 1}"
        yield f"{layers}: {_size(shard.bytes)}{several}"


def notes(plan: "Plan") -> Iterator[str]:
    """What the evidence says of a plan, where it touches a limit."""
    largest, smallest = (
        choose(plan.programs, key=lambda program: program.bytes) for choose in (max, min)
    )
    if largest.bytes > PROGRAM.number:
        yield PROGRAM.note(f"{largest.package}, {_size(largest.bytes)}")
    file, package = max((max(program.files), program.package) for program in plan.programs)
    for limit in FILE:
        if file > limit.number:
            yield limit.note(f"{package}, a weight file of {_size(file)}")
    small = [p for p in plan.programs if p.bytes < SMALL.number]
    if small:
        where = f"{len(small)} of {len(plan.programs)} programs, from {_size(smallest.bytes)}"
        yield SMALL.note(where)
    if plan.weight_bytes > LOADED.number:
        yield LOADED.note(f"{_size(plan.weight_bytes)} in all")
    longest = max(*plan.axes(), *plan.splits)
    for limit in AXIS:
        if longest > limit.number:
            yield limit.note(f"an axis of {longest:,}")
    if (calls := plan.calls()) > MANY:
        yield CALLS.note(f"{calls:.0f} dispatches a token")
    if warning := scheme_warning(plan.recipe.quant, plan.recipe.quant_head):
        yield warning


def _counted(count: float, what: str) -> str:
    return f"{count:,.0f} {what}{'' if round(count) == 1 else 's'}"


def _size(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"


def listed(heading: str, texts: Iterator[str]) -> Iterator[Line]:
    """A line for each text, the heading on the first."""
    for text in texts:
        yield heading, text
        heading = ""
