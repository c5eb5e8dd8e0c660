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


def rows(plan: "Plan", why: bool = False) -> Iterator[Line]:
    """The plan as lines; why: with the evidence, and not only its grade."""
    config, recipe = plan.config, plan.recipe
    form = f"quant {recipe.quant}, head {recipe.quant_head}"
    yield "model", f"{config.architecture}, {config.num_layers} layers; {form}"
    quality = "as the source, rounded to fp16"
    if not recipe.is_plain:
        measured = loss_of(recipe.quant, recipe.quant_head)
        quality = f"{measured} on SmolLM2-135M; another model is unmeasured"
    yield "quality", quality
    yield "programs", _programs(plan)
    yield _calls(plan)
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
    yield from listed("wired", _wired(plan, why))
    yield from listed("strategies", _strategies(plan))
    more = ", and more of it to calibrate" if recipe.is_calibrated else ""
    yield "to convert", f"about {plan.memory_bytes / 1e9:.1f} GB of memory{more}"
    yield from listed("limits", notes(plan, why))


def _programs(plan: "Plan") -> str:
    """How many there are of each part, and their bytes."""
    layers = sum(program.expert is None for program in plan.shards)
    counts = {"layers": layers, "experts": len(plan.shards) - layers}
    counts["the head"] = len(plan.head) + len(plan.pooled)
    parts = ", ".join(f"{count:,} of {part}" for part, count in counts.items() if count)
    largest = max(program.bytes for program in plan.programs)
    return f"{parts}: {_size(plan.weight_bytes)}, the largest {_size(largest)}"


def _calls(plan: "Plan") -> Line:
    K = plan.recipe.verify
    times = f"up to {K} tokens" if K else "token"
    if plan.has_choice:
        reads = f"{plan.calls():,.0f} dispatches, {_size(plan.read_bytes())} of weights"
        return "per token", f"{reads}, {EVEN}"
    if plan.head:
        return f"per {times}", f"{len(plan.programs)} dispatches in decode"
    return "per call", f"{len(plan.programs)} dispatches, up to {plan.recipe.context} tokens"


def _wired(plan: "Plan", why: bool) -> Iterator[str]:
    """What the loaded programs hold on a device: both sides of a claim, and the claim."""
    wired = plan.wired
    if wired.copied == wired.shared:
        yield f"{_size(wired.least)}: each package has one function"
        return
    copies = f"if each of {wired.functions:,} functions has a copy"
    yield f"{_size(wired.least)}, or {_size(wired.most)} {copies}"
    if why:
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


def notes(plan: "Plan", why: bool = True) -> Iterator[str]:
    """What the evidence says of a plan, where it touches a limit; why: with that evidence."""
    largest, smallest = (
        choose(plan.programs, key=lambda program: program.bytes) for choose in (max, min)
    )
    if largest.bytes > PROGRAM.number:
        yield PROGRAM.note(f"{largest.package}, {_size(largest.bytes)}", why)
    file, package = max((max(program.files), program.package) for program in plan.programs)
    for limit in FILE:
        if file > limit.number:
            yield limit.note(f"{package}, a weight file of {_size(file)}", why)
    small = [p for p in plan.programs if p.bytes < SMALL.number]
    if small:
        where = f"{len(small)} of {len(plan.programs)} programs, from {_size(smallest.bytes)}"
        yield SMALL.note(where, why)
    if plan.weight_bytes > LOADED.number:
        yield LOADED.note(f"{_size(plan.weight_bytes)} in all", why)
    longest = max(*plan.axes(), *plan.splits)
    for limit in AXIS:
        if longest > limit.number:
            yield limit.note(f"an axis of {longest:,}", why)
    if (calls := plan.calls()) > MANY:
        yield CALLS.note(f"{calls:.0f} dispatches a token", why)
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
