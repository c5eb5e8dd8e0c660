"""`check_packages`: check that the packages in a manifest fit each other and the contract."""

from typing import TYPE_CHECKING

from ane_book.bundle.order import check_experts, check_order
from ane_book.bundle.parts import FunctionSpec, Part
from ane_book.layout import PER_LAYER, Tail

if TYPE_CHECKING:
    from ane_book.bundle.manifest import Manifest


Shapes = dict[str, tuple[int, ...]]


def check_packages(manifest: "Manifest") -> None:
    """Check every function against the contract that `Manifest` states; raises ValueError."""
    functions, texts = manifest.functions, manifest.task != "text-generation"
    if texts:
        fit = max(functions.values(), default=0) == manifest.context and not manifest.tiers
    else:
        alone = functions.keys() == {"verify"}  # then every cache is a number of whole calls
        fit = functions.get("verify", 2) >= 2 and manifest.tiers[-1:] == [manifest.context]
        if alone:
            fit = fit and not any(S % functions["verify"] for S in manifest.tiers)
        else:
            fit = fit and functions.get("decode") == 1 and functions.get("prefill", 0) >= 2
        fit = fit and max(functions.values()) <= manifest.tiers[0]
    if not fit:
        caches = f", caches of {manifest.tiers} slots" if manifest.tiers or not texts else ""
        raise ValueError(
            f"a context of {manifest.context}{caches} and functions of {functions} tokens do not "
            "fit"
        )
    for part in manifest.packages:
        _check_functions(manifest, part)
    first = manifest.packages[0]
    if not texts and any(function.slots is None for function in first.functions.values()):
        raise ValueError(f"{first.package}: its functions say of no cache how many slots it has")
    ends = {"hidden_out", "logits"} if manifest.tags else {"hidden_out"}
    check_order(manifest.packages, manifest.files, ends)
    check_experts(manifest.packages)
    vectors, tags = manifest.task == "embedding", manifest.task == "token-classification"
    if (manifest.vectors and not vectors) or (manifest.tags and not tags):
        raise ValueError(f"vectors or tags are not of the task {manifest.task}")
    _check_per_layer(manifest)
    for name in manifest.names:
        _check_types(manifest, name)
    _check_encoder(manifest) if texts else _check_head(manifest)


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


def _check_types(manifest: "Manifest", name: str) -> None:
    """Check a function's types in every part against the parts before it; raises ValueError."""
    given: Shapes = {}  # by the parts of the same layers, or by those before them with `hidden_out`
    layer_types = _layer_types if manifest.task == "text-generation" else _encoder_types
    for part in manifest.packages:
        function = part.functions.get(name) or part.functions[manifest.names[name]]
        slots = slot_shapes(manifest, part)
        if own_shape := manifest.per_layer_shape(part, function.tokens):
            slots |= {PER_LAYER: own_shape}
        wanted = {"head": _head_types, "experts": _expert_types}.get(part.part, layer_types)
        for kind, types in wanted(manifest, function, given | slots).items():
            types = types | slots if kind == "inputs" else types
            actual = {key: type_.shape for key, type_ in getattr(function, kind).items()}
            if actual != types:
                raise ValueError(
                    f"{part.package}, {name!r}: {kind} {actual} do not fit; expected: {types}"
                )
        own = {key: type_.shape for key, type_ in function.outputs.items()}
        given = handed(own) if "hidden_out" in own else given | own


def slot_shapes(manifest: "Manifest", part: Part) -> Shapes:
    """Shapes of a part's inputs for an adapter, by name; {} where it has none."""
    if manifest.adapters is None or part.part != "layers":
        return {}
    return manifest.adapters.shapes(len(part.span))


def handed(outputs: dict) -> dict:
    """Of the outputs of a layer's last part, those that the next layers may take."""
    return {n: own for n, own in outputs.items() if n != "hidden_out" and not n.startswith("new_")}


def _check_encoder(manifest: "Manifest") -> None:
    """Check that an encoder has what its task needs, and nothing of a decoder."""
    if manifest.task == "token-classification":
        if manifest.tags is None:
            raise ValueError(f"the task {manifest.task} needs tags")
        if manifest.head or manifest.host.masks:
            raise ValueError(f"the task {manifest.task} has no head or masks of the host")
    else:
        _check_vectors(manifest)


def _check_vectors(manifest: "Manifest") -> None:
    """Check how an encoder's columns become vectors; raises ValueError."""
    vectors, wanted = manifest.vectors, (manifest.context, *manifest.embedding.shape[1:])
    if vectors is None or (vectors.positions and vectors.positions.shape != wanted):
        raise ValueError(
            f"the task {manifest.task} needs vectors, with positions of {wanted} or none"
        )
    if vectors.default_prompt is not None and vectors.default_prompt not in vectors.prompts:
        raise ValueError(f"default_prompt {vectors.default_prompt!r} is none of the prompts")
    outputs = [own for part in manifest.head for own in next(iter(part.functions.values())).outputs]
    if outputs not in ([], ["vector"]):
        raise ValueError(f"the task {manifest.task} has no head that gives {outputs}")
    if (vectors.dimensions or 1) > manifest.vector_size:
        raise ValueError(f"vectors of {manifest.vector_size} numbers, cut to {vectors.dimensions}")


def _check_per_layer(manifest: "Manifest") -> None:
    """Check that the table of the layers' own inputs fits vocabulary and layers; raises
    ValueError."""
    table, layers = manifest.per_layer, manifest.shards[-1].span.stop if manifest.shards else 0
    if table is None:
        return
    rows, columns = manifest.embedding.shape[0], table.shape[1]
    if manifest.task != "text-generation" or table.shape[0] != rows or columns % (layers or 1):
        raise ValueError(
            f"per_layer of {table.shape} does not go with {layers} layers and a vocabulary of "
            f"{rows} of the task {manifest.task}"
        )


def _check_head(manifest: "Manifest") -> None:
    """Check that the head gives logits of the whole vocabulary, or a token; raises ValueError."""
    first = [next(iter(part.functions.values())) for part in manifest.head]
    tokens = [name for function in first for name in function.outputs]
    logits = [f"logits_{i}" for i in range(len(tokens))]
    V = manifest.embedding.shape[0]
    if tokens != ["token"] and (tokens != logits or sum(manifest.splits) != V):
        raise ValueError(f"the head gives {tokens}, {manifest.splits} rows of a vocabulary of {V}")


def _host(manifest: "Manifest", function: FunctionSpec) -> Shapes:
    """Shapes of the inputs that the host gives to a call."""
    C, T, S = manifest.embedding.shape[1], function.tokens, function.slots
    host: Shapes = {"hidden": (1, C, 1, T), "position": (1,), "real": (1, 1, 1, T)}
    if S is not None:
        host |= dict.fromkeys(manifest.host.masks, manifest.layout.input(T, S + T))
    for name, rotary in manifest.host.rotary.items():
        table = manifest.layout.input(T, rotary.head_dim)
        host |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), table)
    return host


def _layer_types(manifest: "Manifest", function: FunctionSpec, given: Shapes) -> dict[str, Shapes]:
    """The types that a decoder's layers must have, for the names that the function has."""
    call, host = function.call(manifest.layout), _host(manifest, function)
    stores, known = function.stores(manifest.layout), given | host
    kept = {store.name: store for store in stores if not store.is_state}
    inputs = {n: known[n] for n in function.inputs if n in known}
    inputs |= {name: store.shape(call) for name, store in kept.items()}
    outputs: Shapes = {n: t.shape for n, t in function.outputs.items() if n not in host}
    outputs |= {f"new_{name}": store.new(call) for name, store in kept.items()}
    if "hidden_out" in outputs:
        outputs["hidden_out"] = host["hidden"]
    states = {s.name: s.shape(call) for s in stores if s.is_state and not isinstance(s.kind, Tail)}
    outputs |= _mixed(function, host["hidden"])
    return {"inputs": inputs, "states": states, "outputs": outputs}


def _mixed(function: FunctionSpec, hidden: tuple[int, ...]) -> Shapes:
    """Shapes of a part's outputs for experts, if it has any."""
    if (gates := function.outputs.get("gates")) is None:
        return {}
    return {"x": hidden, "gates": (1, (*gates.shape, 0, 0)[1], *hidden[2:])}


def _expert_types(manifest: "Manifest", function: FunctionSpec, given: Shapes) -> dict[str, Shapes]:
    """The types that an expert must have."""
    hidden = _host(manifest, function)["hidden"]
    inputs = {"x": hidden, "gate": (1, 1, *hidden[2:])}
    return {"inputs": inputs, "states": {}, "outputs": {"y": hidden}}


def _encoder_types(
    manifest: "Manifest", function: FunctionSpec, given: Shapes
) -> dict[str, Shapes]:
    """The types that a package of an encoder must have."""
    T = function.tokens
    hidden = 1, manifest.embedding.shape[1], 1, T
    host: Shapes = {"hidden": hidden}
    host |= dict.fromkeys(manifest.host.masks or ["mask"], (1, 1, T, T))
    for name, rotary in manifest.host.rotary.items():
        host |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), (1, 1, T, rotary.head_dim))
    inputs = host
    if manifest.host.masks:  # layers of several kinds, of which a package may lack one
        inputs = {n: own for n, own in host.items() if n == "hidden" or n in function.inputs}
    outputs: Shapes = {"hidden_out": hidden}
    last = manifest.packages[-1].functions.values()
    if manifest.tags and any(function is own for own in last):
        outputs = {"logits": (1, len(manifest.tags.labels), 1, T)}
    if "gates" in function.outputs or "y" in function.inputs:  # around experts
        inputs = {n: shape for n, shape in (host | given).items() if n in function.inputs}
    if "gates" in function.outputs:
        own = {name: t.shape for name, t in function.outputs.items() if name not in host}
        outputs = own | _mixed(function, hidden)
    return {"inputs": inputs, "states": {}, "outputs": outputs}


def _head_types(manifest: "Manifest", function: FunctionSpec, given: Shapes) -> dict[str, Shapes]:
    """The types that a package of the head must have."""
    T, hidden = function.tokens, (1, manifest.embedding.shape[1], 1, function.tokens)
    outputs: Shapes = {}
    for name, type_ in function.outputs.items():
        outputs[name] = (1, T) if name == "token" else (1, (*type_.shape, 0, 0)[1], 1, T)
    return {"inputs": {"hidden": hidden}, "outputs": outputs}
