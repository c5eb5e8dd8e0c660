"""The contract of manifest.json held to itself: programs that fit each other, and the host.

What the contract is stands at `ane_book.bundle.manifest.Manifest`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ane_book.bundle.manifest import Function, Manifest

__all__ = ["check_packages"]

Shapes = dict[str, tuple[int, ...]]


def check_packages(manifest: "Manifest") -> None:
    """Hold every function to the contract that the head of this file states; raises ValueError."""
    functions, texts = manifest.functions, manifest.task != "text-generation"
    if texts:
        fit = max(functions.values(), default=0) == manifest.context
    else:
        fit = functions.get("decode") == 1
        fit = fit and 2 <= functions.get("prefill", 0) <= manifest.context
    if not fit:
        raise ValueError(
            f"a context of {manifest.context} and functions of {functions} tokens do not fit"
        )
    _check_order(manifest)
    for part in manifest.packages:
        if {name: f.tokens for name, f in part.functions.items()} != functions:
            raise ValueError(f"{part.package} has other functions than the first package")
    own = {"embedding": manifest.vectors, "token-classification": manifest.tags}
    if any(part is not None for task, part in own.items() if task != manifest.task):
        raise ValueError(f"vectors or tags are not of the task {manifest.task}")
    for name in functions:
        _check_types(manifest, name)
    _check_encoder(manifest) if texts else _check_head(manifest)


def _check_types(manifest: "Manifest", name: str) -> None:
    """Hold one function of every part to what those before it give; raises ValueError."""
    given: Shapes = {}  # by the parts of the same layers
    layer_types = _layer_types if manifest.task == "text-generation" else _encoder_types
    for part in manifest.packages:
        function = part.functions[name]
        wanted = _head_types if part.part == "head" else layer_types
        for kind, types in wanted(manifest, function, given).items():
            found = {key: type_.shape for key, type_ in getattr(function, kind).items()}
            if found != types:
                raise ValueError(
                    f"{part.package}, {name!r}: {kind} {found} do not fit; expected: {types}"
                )
        given |= {key: type_.shape for key, type_ in function.outputs.items()}
        if "hidden_out" in given:
            given = {}


def _check_encoder(manifest: "Manifest") -> None:
    """An encoder has what its task needs, and nothing of a decoder; raises ValueError."""
    shape, task = (manifest.context, manifest.embedding.shape[1]), manifest.task
    vectors = manifest.vectors
    if task == "embedding" and (vectors is None or vectors.positions.shape != shape):
        raise ValueError(f"the task embedding needs vectors, with positions of {shape}")
    if task == "token-classification" and manifest.tags is None:
        raise ValueError(f"the task {task} needs tags")
    if manifest.head or manifest.host.masks or (vectors and manifest.host.rotary):
        raise ValueError(f"the task {task} has no head, masks or rotary tables of the host")


def _check_head(manifest: "Manifest") -> None:
    """The head gives logits of the whole vocabulary, or a token; raises ValueError."""
    outputs = [name for part in manifest.head for name in part.functions["decode"].outputs]
    tokens = [name for name in outputs if name != "hidden_out"]
    logits = [f"logits_{i}" for i in range(len(tokens))]
    V = manifest.embedding.shape[0]
    if tokens != ["token"] and (tokens != logits or sum(manifest.splits) != V):
        raise ValueError(f"the head gives {tokens}, {manifest.splits} rows of a vocabulary of {V}")


def _check_order(manifest: "Manifest") -> None:
    """Nothing is left out, and layers come in order; raises ValueError."""
    packages = {part.package for part in manifest.packages}
    if left := {name.split("/")[0] for name in manifest.files if "/" in name} - packages:
        raise ValueError(f"{min(left)} is among the files, but is no part of the model")
    layer, ended, ends = 0, True, {"hidden_out", "logits"} if manifest.tags else {"hidden_out"}
    for part in manifest.shards:
        first, last = part.layers or (None, None)
        if first != layer or last <= first:
            raise ValueError(f"{part.package}, layers {first} to {last}, is out of order")
        ended = all(f.outputs.keys() & ends for f in part.functions.values())
        layer = last if ended else layer
    if not ended:
        raise ValueError(f"no part ends layer {layer} by giving hidden_out")


def _host(manifest: "Manifest", tokens: int) -> Shapes:
    """Shapes of what the host gives to a call."""
    C, T, S = manifest.embedding.shape[1], tokens, manifest.context
    host = {"hidden": (1, C, 1, T), "position": (1,)}
    host |= dict.fromkeys(manifest.host.masks, (1, 1, T, S + T))
    for name, rotary in manifest.host.rotary.items():
        host |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), (1, 1, T, rotary.head_dim))
    return host


def _layer_types(manifest: "Manifest", function: "Function", given: Shapes) -> dict[str, Shapes]:
    """Inputs and outputs as they have to be, for the names that are there."""
    T, S, host = function.tokens, manifest.context, _host(manifest, function.tokens)
    inputs, outputs = {}, {n: t.shape for n, t in function.outputs.items() if n not in host}
    for name, type_ in function.inputs.items():
        if f"new_{name}" not in outputs and name in given | host:
            inputs[name] = (given | host)[name]
        else:  # a cache
            n, K, _, D = (*type_.shape, 0, 0, 0, 0)[:4]
            inputs[name], outputs[f"new_{name}"] = (n, K, S, D), (n, K, T, D)
    if "hidden_out" in outputs:
        outputs["hidden_out"] = host["hidden"]
    return {"inputs": inputs, "outputs": outputs}


def _encoder_types(manifest: "Manifest", function: "Function", given: Shapes) -> dict[str, Shapes]:
    """The same of a package of an encoder."""
    T = function.tokens
    hidden = 1, manifest.embedding.shape[1], 1, T
    inputs = {"hidden": hidden, "mask": (1, 1, T, T)}
    for name, rotary in manifest.host.rotary.items():
        inputs |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), (1, 1, T, rotary.head_dim))
    outputs: Shapes = {"hidden_out": hidden}
    last = manifest.packages[-1].functions.values()
    if manifest.tags and any(function is own for own in last):
        outputs = {"logits": (1, len(manifest.tags.labels), 1, T)}
    return {"inputs": inputs, "states": {}, "outputs": outputs}


def _head_types(manifest: "Manifest", function: "Function", given: Shapes) -> dict[str, Shapes]:
    """The same of a package of the head."""
    T, outputs = function.tokens, {}
    hidden = 1, manifest.embedding.shape[1], 1, T
    for name, type_ in function.outputs.items():
        outputs[name] = (1, T) if name == "token" else (1, (*type_.shape, 0, 0)[1], 1, T)
    if "hidden_out" in outputs:
        outputs["hidden_out"] = hidden
    return {"inputs": {"hidden": hidden}, "outputs": outputs}
