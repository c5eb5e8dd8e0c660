"""`manifest.json`: what a bundle is for, its programs as they are, and what the host does.

`Manifest` says how to read it; its JSON schema, for programs in other languages, is
`research/manifest.schema.json`. Whatever was read or made is held to that contract here.
"""

from collections import Counter
from math import prod
from typing import Literal

from ane_book.bundle.order import check_experts, check_order
from ane_book.bundle.parts import (
    SHA256,
    Embedding,
    FileName,
    Function,
    Natural,
    Part,
    Positive,
    Record,
    Source,
    Tags,
    Tokenizer,
    Vectors,
)
from ane_book.host import Host
from ane_book.options import Recipe
from pydantic import Field, model_validator

__all__ = ["FORMAT", "Manifest"]

FORMAT = "ane-book bundle 5"


class Manifest(Record):
    """What a bundle holds, version 5.

    It is enough to run a bundle, in any language, and knows no architecture. Text generation:

    1.  A token's row of `embedding`, times `host.embedding_scale`, is a column of `hidden`
        (1, C, 1, T); a call of n < T tokens has columns beyond them, whose results are ignored.
    2.  Every part "layers" of `packages` is called in order, by its function of T tokens. Of its
        inputs, `hidden` is the hidden state, `position` (1,) the slot of the first token, a rotary
        table or a mask what `host` says, `x` with a result `new_x` a cache (n, K, S, D) or a tail
        (n, R, 1, W), and any other one the result of that name of a part before it. The result
        `hidden_out` is the next hidden state. The rows `new_x` (n, K, T, D) go into the cache `x`
        at `position`. The columns `new_x` (n, R, 1, T) of a tail belong to the call's tokens; `x`
        is those of the W tokens before `position`. A host that keeps the columns of all tokens can
        go back to any of them. Caches, columns before the first token and states are zeros at
        first; they are kept from call to call.
        A function `verify` of K tokens does all decoding where it is there: the context is cut into
        blocks of K slots, and a call begins at its block, with the tokens of the block so far given
        again, and guesses behind them.
    3.  Where logits are wanted, the parts "head" are called with the hidden state likewise.
        The parts `logits_0`, `logits_1`, ... (1, V_i, 1, T) in a row are the logits; or `token` (1,
        T) is the likeliest token.

    A part that gives `x` (1, C, 1, T) and `gates` (1, E, 1, T) has E experts after it, the parts
    "experts" by their numbers. One takes `x`, and its own row of the gates as `gate` (1, 1, 1, T),
    and gives `y` (1, C, 1, T). Only those are called of which the gate of one of the n tokens is
    not 0; what they give is added up in single precision, and the sum is the `y` of the next part.

    A part with a `stretch` is the host's to run, on its CPU: what is between the programs of the
    device, where each of those has one matrix alone.

    Embedding, that is texts to vectors:

    1.  A token's row of `embedding`, plus the row of `vectors.positions` for its place in its
        text, is a column of `hidden` (1, C, 1, T). Texts may share a call, side by side. `mask`
        (1, 1, T, T) is 0 where row and column are tokens of one text, and -40,000 elsewhere;
        columns beyond the texts see each other alone.
    2.  Every package is called in order, by the same function of T tokens; `hidden_out` is the
        hidden state for the next one.
    3.  The mean of a text's columns, or the first of them, divided by its length, is the text's
        vector.

    Token classification, that is labels of tokens: the same, but for a column of `hidden` being the
    row of `embedding` alone; rotary tables are what `host` says, by a token's place in its text;
    `mask` is -40,000 also where row and column are more than `tags.window` apart; and the last
    package gives `logits` (1, N, 1, T), a score for each of the N `tags.labels`. A text that is
    longer than a call goes in windows: with L layers, the labels of a token depend on the L *
    `tags.window` tokens on each side.

    Letters: C hidden size, T tokens of a call, S slots of the cache (`context`), n layers of a
    package, K key/value heads, D head size, V vocabulary; R channels and W columns of a tail.
    """

    format: Literal["ane-book bundle 5"] = FORMAT
    name: str
    task: Literal["text-generation", "embedding", "token-classification"]
    packages: list[Part] = Field(min_length=1, description="In the order of a token's way")
    embedding: Embedding
    context: Positive = Field(
        description="S, slots of the cache: prompt and answer together; the most tokens of a text"
    )
    host: Host
    vectors: Vectors | None = Field(None, description="Of the task embedding")
    tags: Tags | None = Field(None, description="Of the task token-classification")
    tokenizer: Tokenizer
    golden: FileName = Field("golden.npz", description="Token ids, and what PyTorch says of them")
    model: dict = Field(description="For the record: the model in numbers; running needs none")
    recipe: Recipe = Field(description="For the record: how it was converted")
    source: Source = Field(description="For the record: what it was converted from")
    tools: dict[str, str] = Field(description="For the record: versions of what converted it")
    files: dict[FileName, Natural] = Field(description="Every file but this one, with its bytes")
    sha256: dict[FileName, SHA256] = Field(description="Of the same files")
    seal: str = Field("", description="sha256 of all fields above as JSON with sorted keys")

    @model_validator(mode="after")
    def _check(self) -> "Manifest":
        if self.sha256.keys() != self.files.keys():
            raise ValueError("files and sha256 name different files")
        tables = [self.embedding, *([self.vectors.positions] if self.vectors else [])]
        used = [self.golden, self.tokenizer.file, *(table.file for table in tables)]
        used += [f"{part.package}/Manifest.json" for part in self.packages]
        for name in used:
            if name not in self.files:
                raise ValueError(f"{name!r} is used, but not among the files")
        for table in tables:
            if 2 * prod(table.shape) > self.files[table.file]:
                raise ValueError(f"{table.file}: {table.shape} is more than its file holds")
        _check_packages(self)
        return self

    @property
    def functions(self) -> dict[str, int]:
        """The functions of every package, and T, the tokens that a call of each takes."""
        return {name: f.tokens for name, f in self.packages[0].functions.items()}

    @property
    def programs(self) -> list[Part]:
        """The parts that are the device's, not the host's."""
        return [part for part in self.packages if part.stretch is None]

    @property
    def shards(self) -> list[Part]:
        """The packages of the layers."""
        return [part for part in self.packages if part.part == "layers"]

    @property
    def experts(self) -> list[int]:
        """How many experts every layer has that are programs; [] where there are none."""
        parts = [part.layers for part in self.packages if part.part == "experts"]
        return list(Counter(parts).values())

    @property
    def head(self) -> list[Part]:
        """The packages of the head."""
        return [part for part in self.packages if part.part == "head"]

    @property
    def handed(self) -> dict[str, int]:
        """R of every value (1, R, 1, T) that layers of one part hand to those of the next one."""
        functions = [next(iter(part.functions.values())) for part in self.shards]
        ends = [f.outputs for f in functions if "hidden_out" in f.outputs]
        return {n: t.shape[1] for outputs in ends for n, t in _handed(outputs).items()}

    @property
    def splits(self) -> list[int]:
        """Rows of each part of the vocabulary; [] where the head gives the token."""
        parts = {}
        for part in self.head:
            outputs = part.functions["decode"].outputs
            parts |= {name: type_.shape[1] for name, type_ in outputs.items()}
        return [rows for name, rows in parts.items() if name not in ("token", "hidden_out")]

    @property
    def argmax_output(self) -> bool:
        """Whether the head gives the likeliest token instead of logits."""
        return not self.splits


# --- the contract --------------------------------------------------------------------------------

Shapes = dict[str, tuple[int, ...]]


def _check_packages(manifest: Manifest) -> None:
    """Hold every function to the contract that `Manifest` states; raises ValueError."""
    functions, texts = manifest.functions, manifest.task != "text-generation"
    if texts:
        fit = max(functions.values(), default=0) == manifest.context
    else:
        fit = functions.get("decode") == 1
        fit = fit and 2 <= functions.get("prefill", 0) <= manifest.context
        fit = fit and 2 <= functions.get("verify", 2) <= manifest.context
    if not fit:
        raise ValueError(
            f"a context of {manifest.context} and functions of {functions} tokens do not fit"
        )
    ends = {"hidden_out", "logits"} if manifest.tags else {"hidden_out"}
    check_order(manifest.packages, manifest.files, ends)
    check_experts(manifest.packages)
    for part in manifest.packages:
        if {name: f.tokens for name, f in part.functions.items()} != functions:
            raise ValueError(f"{part.package} has other functions than the first package")
    own = {"embedding": manifest.vectors, "token-classification": manifest.tags}
    if any(part is not None for task, part in own.items() if task != manifest.task):
        raise ValueError(f"vectors or tags are not of the task {manifest.task}")
    for name in functions:
        _check_types(manifest, name)
    _check_encoder(manifest) if texts else _check_head(manifest)


def _check_types(manifest: Manifest, name: str) -> None:
    """Hold one function of every part to what those before it give; raises ValueError."""
    given: Shapes = {}  # by the parts of the same layers, or by those before them with `hidden_out`
    layer_types = _layer_types if manifest.task == "text-generation" else _encoder_types
    for part in manifest.packages:
        function = part.functions[name]
        wanted = {"head": _head_types, "experts": _expert_types}.get(part.part, layer_types)
        for kind, types in wanted(manifest, function, given).items():
            found = {key: type_.shape for key, type_ in getattr(function, kind).items()}
            if found != types:
                raise ValueError(
                    f"{part.package}, {name!r}: {kind} {found} do not fit; expected: {types}"
                )
        own = {key: type_.shape for key, type_ in function.outputs.items()}
        given = _handed(own) if "hidden_out" in own else given | own


def _handed(outputs: dict) -> dict:
    """Of the results of the last part of some layers, those that the next layers may take."""
    return {n: own for n, own in outputs.items() if n != "hidden_out" and not n.startswith("new_")}


def _check_encoder(manifest: Manifest) -> None:
    """An encoder has what its task needs, and nothing of a decoder; raises ValueError."""
    shape, task = (manifest.context, manifest.embedding.shape[1]), manifest.task
    vectors = manifest.vectors
    if task == "embedding" and (vectors is None or vectors.positions.shape != shape):
        raise ValueError(f"the task embedding needs vectors, with positions of {shape}")
    if task == "token-classification" and manifest.tags is None:
        raise ValueError(f"the task {task} needs tags")
    if manifest.head or manifest.host.masks or (vectors and manifest.host.rotary):
        raise ValueError(f"the task {task} has no head, masks or rotary tables of the host")


def _check_head(manifest: Manifest) -> None:
    """The head gives logits of the whole vocabulary, or a token; raises ValueError."""
    outputs = [name for part in manifest.head for name in part.functions["decode"].outputs]
    tokens = [name for name in outputs if name != "hidden_out"]
    logits = [f"logits_{i}" for i in range(len(tokens))]
    V = manifest.embedding.shape[0]
    if tokens != ["token"] and (tokens != logits or sum(manifest.splits) != V):
        raise ValueError(f"the head gives {tokens}, {manifest.splits} rows of a vocabulary of {V}")


def _host(manifest: Manifest, tokens: int) -> Shapes:
    """Shapes of what the host gives to a call."""
    C, T, S = manifest.embedding.shape[1], tokens, manifest.context
    host = {"hidden": (1, C, 1, T), "position": (1,)}
    host |= dict.fromkeys(manifest.host.masks, (1, 1, T, S + T))
    for name, rotary in manifest.host.rotary.items():
        host |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), (1, 1, T, rotary.head_dim))
    return host


def _layer_types(manifest: Manifest, function: Function, given: Shapes) -> dict[str, Shapes]:
    """Inputs and outputs as they have to be, for the names that are there."""
    T, S, host = function.tokens, manifest.context, _host(manifest, function.tokens)
    inputs, outputs = {}, {n: t.shape for n, t in function.outputs.items() if n not in host}
    for name, type_ in function.inputs.items():
        if f"new_{name}" not in outputs and name in given | host:
            inputs[name] = (given | host)[name]
        else:
            n, K, slots, D = (*type_.shape, 0, 0, 0, 0)[:4]
            # Of a tail D is W; a cache has at least two slots.
            tail = slots == 1 and f"new_{name}" in outputs
            inputs[name] = (n, K, 1, D) if tail else (n, K, S, D)
            outputs[f"new_{name}"] = (n, K, 1, T) if tail else (n, K, T, D)
    if "hidden_out" in outputs:
        outputs["hidden_out"] = host["hidden"]
    return {"inputs": inputs, "outputs": outputs | _mixed(function, host["hidden"])}


def _mixed(function: Function, hidden: tuple[int, ...]) -> Shapes:
    """What a part gives to experts, if it has any."""
    if (gates := function.outputs.get("gates")) is None:
        return {}
    return {"x": hidden, "gates": (1, (*gates.shape, 0, 0)[1], *hidden[2:])}


def _expert_types(manifest: Manifest, function: Function, given: Shapes) -> dict[str, Shapes]:
    """The same of an expert."""
    hidden = _host(manifest, function.tokens)["hidden"]
    inputs = {"x": hidden, "gate": (1, 1, *hidden[2:])}
    return {"inputs": inputs, "states": {}, "outputs": {"y": hidden}}


def _encoder_types(manifest: Manifest, function: Function, given: Shapes) -> dict[str, Shapes]:
    """The same of a package of an encoder."""
    T = function.tokens
    hidden = 1, manifest.embedding.shape[1], 1, T
    host = {"hidden": hidden, "mask": (1, 1, T, T)}
    for name, rotary in manifest.host.rotary.items():
        host |= dict.fromkeys((f"{name}_cos", f"{name}_sin"), (1, 1, T, rotary.head_dim))
    inputs, outputs = host, {"hidden_out": hidden}
    last = manifest.packages[-1].functions.values()
    if manifest.tags and any(function is own for own in last):
        outputs = {"logits": (1, len(manifest.tags.labels), 1, T)}
    if "gates" in function.outputs or "y" in function.inputs:  # around experts
        inputs = {name: (host | given).get(name) for name in function.inputs}
    if "gates" in function.outputs:
        own = {name: t.shape for name, t in function.outputs.items() if name not in host}
        outputs = own | _mixed(function, hidden)
    return {"inputs": inputs, "states": {}, "outputs": outputs}


def _head_types(manifest: Manifest, function: Function, given: Shapes) -> dict[str, Shapes]:
    """The same of a package of the head."""
    T, outputs = function.tokens, {}
    hidden = 1, manifest.embedding.shape[1], 1, T
    for name, type_ in function.outputs.items():
        outputs[name] = (1, T) if name == "token" else (1, (*type_.shape, 0, 0)[1], 1, T)
    if "hidden_out" in outputs:
        outputs["hidden_out"] = hidden
    return {"inputs": {"hidden": hidden}, "outputs": outputs}
