"""`check_packages`: check that the packages in a manifest fit each other and the contract.

Letters: C hidden size, T tokens of a call, S slots of the cache, V vocabulary.
"""

from typing import TYPE_CHECKING

from ane_book.bundle.parts import FunctionSpec, Part
from ane_book.layout import PER_LAYER, ROWS, Tail

if TYPE_CHECKING:
    from ane_book.bundle.manifest import Manifest

Shapes = dict[str, tuple[int, ...]]


def check_packages(manifest: "Manifest") -> None:
    """Check every function against the contract of research/manifest.md; raises ValueError."""
    _check_calls(manifest)
    for part in manifest.packages:
        _check_functions(manifest, part)
    _check_order(manifest)
    _check_experts(manifest.packages)
    _check_task(manifest)
    _check_layers(manifest)
    for name in manifest.names:
        _check_types(manifest, name)


def _check_calls(manifest: "Manifest") -> None:
    """Check that calls of the functions fit the context and its tiers; raises ValueError."""
    functions, tiers = manifest.functions, manifest.tiers
    longest, block = max(functions.values(), default=0), functions.get("verify", 2)
    if manifest.task != "text-generation":
        fit = longest == manifest.context and not tiers
    else:
        fit = tiers[-1:] == [manifest.context] and block >= 2 and longest <= tiers[0]
        if functions.keys() == {"verify"}:  # then every cache is a number of whole calls
            fit = fit and not any(S % block for S in tiers)
        else:
            fit = fit and functions.get("decode") == 1 and functions.get("prefill", 0) >= 2
    if not fit:
        caches = f", caches of {tiers} slots" if tiers else ""
        raise ValueError(
            f"a context of {manifest.context}{caches} and functions of {functions} tokens do not "
            "fit"
        )


def _check_functions(manifest: "Manifest", part: Part) -> None:
    """Check that a part has every function once, or once for every tier, and that their caches
    differ in slots alone; raises ValueError."""
    sizes = {name: (f.tokens, f.slots) for name, f in part.functions.items()}
    plain = {name: (tokens, None) for name, tokens in manifest.functions.items()}
    if sizes not in (plain, manifest.tiered or plain):
        raise ValueError(f"{part.package} has other functions than the first package")
    kept = []
    for function in part.functions.values():
        types, stores = function.inputs | function.states, function.stores(manifest.layout)
        kept.append({store: types[store.name].dtype for store in stores})
    if any(own != kept[0] for own in kept):
        raise ValueError(f"{part.package}: its functions keep different caches: {kept}")


def _check_order(manifest: "Manifest") -> None:
    """Check that layers come in order, each part of them after those before; raises ValueError."""
    layer, mixed, ended = 0, False, True
    for part in manifest.shards:
        if part.layers is None:
            raise ValueError(f"{part.package} says of no layers that it has them")
        first, last = part.layers
        if first != layer or last < first + (not mixed):  # what is behind experts may end it all
            raise ValueError(f"{part.package}, layers {first} to {last}, is out of order")
        end = "logits" if manifest.tags and part is manifest.packages[-1] else "hidden_out"
        given = [f.outputs for f in part.functions.values()]
        mixed, ended = (all(name in own for own in given) for name in ("gates", end))
        layer = last if ended or mixed else layer
    if not ended:
        raise ValueError(f"no part ends layer {layer} by giving hidden_out, or logits of labels")


def _check_experts(parts: list[Part]) -> None:
    """Check that gates are followed by as many experts, in order; raises ValueError."""
    number = count = 0
    layers: tuple[int, int] | None = None
    for part in [*parts, None]:
        if part and part.part == "experts":
            if (part.expert, part.layers) != (number, layers) or number == count:
                raise ValueError(
                    f"{part.package}, expert {part.expert} of layers {part.layers}, is out of "
                    f"order; expected: {number} of {count}, of layers {layers}"
                )
            number += 1
            continue
        if number != count:
            raise ValueError(f"layers {layers} have {number} experts, and gates for {count}")
        if part:
            gates = [f.outputs.get("gates") for f in part.functions.values()]
            sizes = {(*gate.shape, 0, 0)[1] if gate else 0 for gate in gates}
            number, count, layers = 0, max(sizes), part.layers
            if len(sizes) > 1:
                raise ValueError(f"{part.package}: functions with gates for {sorted(sizes)}")


def _check_task(manifest: "Manifest") -> None:
    """Check that there is what the task needs, and nothing of another one; raises ValueError."""
    task, vectors, tags = manifest.task, manifest.vectors, manifest.tags
    V, C = manifest.embedding.shape
    first = [next(iter(part.functions.values())) for part in manifest.head]
    outputs = [name for function in first for name in function.outputs]
    logits = [f"logits_{i}" for i in range(len(outputs))]
    if (vectors and task != "embedding") or (tags and task != "token-classification"):
        raise ValueError(f"vectors or tags are not of the task {task}")
    if task == "text-generation":
        if outputs != ["token"] and (outputs != logits or sum(manifest.splits) != V):
            raise ValueError(
                f"the head gives {outputs}, {manifest.splits} rows of a vocabulary of {V}"
            )
    elif vectors is None:
        if tags is None or outputs:
            raise ValueError(
                f"the task {task} needs vectors, with positions of {manifest.context, C} or none, "
                "or tags and no head"
            )
    elif vectors.positions and vectors.positions.shape != (manifest.context, C):
        raise ValueError(f"vectors with positions of {manifest.context, C} or none are needed")
    elif vectors.default_prompt is not None and vectors.default_prompt not in vectors.prompts:
        raise ValueError(f"default_prompt {vectors.default_prompt!r} is none of the prompts")
    elif outputs not in ([], ["vector"]):
        raise ValueError(f"the task {task} has no head that gives {outputs}")
    elif (vectors.dimensions or 1) > manifest.vector_size:
        raise ValueError(f"vectors of {manifest.vector_size} numbers, cut to {vectors.dimensions}")
    if table := manifest.per_layer:
        layers = manifest.shards[-1].span.stop if manifest.shards else 0
        if task != "text-generation" or table.shape[0] != V or table.shape[1] % (layers or 1):
            raise ValueError(
                f"per_layer of {table.shape} does not go with {layers} layers and a vocabulary of "
                f"{V} of the task {task}"
            )


def _check_layers(manifest: "Manifest") -> None:
    """Check that what packages keep is of layers, whose tables and masks the host makes; raises
    ValueError."""
    if not manifest.layers:
        return
    count = manifest.shards[-1].span.stop if manifest.shards else 0
    if len(manifest.layers) != count or manifest.task != "text-generation":
        raise ValueError(f"{len(manifest.layers)} layers are described, and packages have {count}")
    manifest.places()
    for i, own in enumerate(manifest.layers):
        none = set() if any(name.startswith(ROWS) for name in own.stores) else {None}
        tables, masks = none | {*manifest.host.rotary}, none | {*manifest.host.masks}
        if own.rotary not in tables or own.mask not in masks:
            raise ValueError(f"layer {i} has a table or a mask that the host does not make")


def _check_types(manifest: "Manifest", name: str) -> None:
    """Check a function's types in every part: each input is the host's, of an adapter, kept from
    call to call, or given by a part before it; raises ValueError."""
    given: Shapes = {}  # by the parts of the same layers, or by those before them with `hidden_out`
    for part in manifest.packages:
        function = part.functions.get(name) or part.functions[manifest.names[name]]
        for kind, expected in _contract(manifest, part, function, given).items():
            actual = {key: type_.shape for key, type_ in getattr(function, kind).items()}
            if actual != expected:
                raise ValueError(
                    f"{part.package}, {name!r}: {kind} {actual} do not fit; expected: {expected}"
                )
        own: Shapes = {key: type_.shape for key, type_ in function.outputs.items()}
        given = function.handed if "hidden_out" in own else given | own


def _contract(
    manifest: "Manifest", part: Part, function: FunctionSpec, given: Shapes
) -> dict[str, Shapes]:
    """The shapes that a part's function must have, for the names that it has."""
    T, hidden = function.tokens, (1, manifest.embedding.shape[1], 1, function.tokens)
    if part.part == "experts":
        inputs: Shapes = {"x": hidden, "gate": (1, 1, 1, T)}
        return {"inputs": inputs, "states": {}, "outputs": {"y": hidden}}
    # Of what a part gives, these have fixed shapes, and all else (1, R, 1, T).
    outputs: Shapes = {"hidden_out": hidden, "x": hidden, "token": (1, T)}
    if manifest.tags:
        outputs["logits"] = 1, len(manifest.tags.labels), 1, T
    host: Shapes = {"hidden": hidden}
    known, states = host, {}
    if part.part == "layers":
        host = _host(manifest, function)
        known = given | host | slot_shapes(manifest, part)
        if table := manifest.per_layer:  # P numbers of each layer
            P = table.shape[1] // (manifest.shards[-1].span.stop or 1)
            known[PER_LAYER] = len(part.span), P, 1, T
    if part.part == "layers" and manifest.task == "text-generation":
        call = function.call(manifest.layout)
        for store in function.stores(manifest.layout):
            if not store.is_state:
                known[store.name] = store.shape(call)
                outputs[f"new_{store.name}"] = store.new(call)
            elif not isinstance(store.kind, Tail):
                states[store.name] = store.shape(call)
    rows = {n: (1, (*t.shape, 0, 0)[1], 1, T) for n, t in function.outputs.items()}
    return {
        "inputs": {n: known[n] for n in function.inputs if n in known},
        "states": states,
        "outputs": {n: outputs.get(n, shape) for n, shape in rows.items() if n not in host},
    }


def _host(manifest: "Manifest", function: FunctionSpec) -> Shapes:
    """Shapes of the inputs that the host gives to a call of layers."""
    C, T, S = manifest.embedding.shape[1], function.tokens, function.slots
    host: Shapes = {"hidden": (1, C, 1, T)}
    if manifest.task == "text-generation":
        host |= {"position": (1,), "real": (1, 1, 1, T)}
        masks = [*manifest.host.masks] if S else []
    else:
        masks = [*manifest.host.masks] or ["mask"]
    host |= dict.fromkeys(masks, manifest.layout.input(T, (S or 0) + T))
    for name, rotary in manifest.host.rotary.items():
        table = manifest.layout.input(T, rotary.head_dim)
        host |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), table)
    return host


def slot_shapes(manifest: "Manifest", part: Part) -> Shapes:
    """Shapes of a part's inputs for an adapter, by name; {} where it has none."""
    if manifest.adapters is None or part.part != "layers":
        return {}
    return manifest.adapters.shapes(len(part.span))
