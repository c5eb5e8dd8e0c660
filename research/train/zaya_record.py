"""Measure zaya-small on text that it did not learn, and what its routers do, into record.json.

    python research/train/zaya_record.py TEXT

Perplexity counts a token at a time, bits a byte of text at a time, so that models of another
vocabulary can be held against it. A router is judged by what is lost when it is not obeyed: the
model runs with other choices, and nothing else in it is changed.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
import hashlib
from itertools import pairwise
import json
from math import exp, log
from pathlib import Path
import re
import subprocess

from safetensors.torch import load_file
import tokenizers
from tokenizers import Tokenizer
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
import transformers
from transformers import ZayaConfig, ZayaForCausalLM
from zaya import RESULT, ROOT, digest, parted, repository, routes, sampled

HELD_OUT_TEXT = Path(__file__).with_name("zaya_held_out.jsonl")

#: gates (n, 1), choices (n, 1) and probabilities (n, E + 1) of a layer -> gates and choices
Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Ids = list[list[int]]
KINDS = ("begins a word", "goes on with a word", "digit", "punctuation", "line break, space", "END")


def load(folder: Path) -> tuple[ZayaForCausalLM, Tokenizer]:
    """The model as it was written, in float32, and its tokenizer."""
    config = ZayaConfig(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
    model = ZayaForCausalLM(config)
    weights = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
    missing, left_over = model.load_state_dict(weights, strict=False)
    assert not left_over and set(missing) <= {"lm_head.weight"}, (missing, left_over)
    model.tie_weights()
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def windows(tokenizer: Tokenizer, texts: list[str], size: int = 256) -> Ids:
    """The tokens of each text after an END; of a long one in pieces, each after an END."""
    encoded = (each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False))
    return [[0, *ids[i : i + size]] for ids in encoded for i in range(0, len(ids), size)]


# --- perplexity


@torch.inference_mode()
def nats(model: ZayaForCausalLM, rows: Ids) -> float:
    """The surprise at all tokens but the first of each row, in nats."""
    total = 0.0
    for row in rows:
        ids = torch.tensor([row])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0]
        total += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
    return total


def figures(surprise: float, rows: Ids, texts: list[str]) -> dict[str, float]:
    tokens, size = sum(len(row) - 1 for row in rows), sum(len(text.encode()) for text in texts)
    return {
        "tokens": tokens,
        "perplexity": round(exp(surprise / tokens), 3),
        "bits_per_byte": round(surprise / log(2) / size, 4),
    }


def by_counting(learnt: Ids, rows: Ids, vocabulary: int) -> dict[str, float]:
    """The surprise of two models that count the tokens learnt: one at a time, and pairs.

    A pair is counted with as much of the single as the text has tokens that came after its first
    but once (Witten and Bell 1991); a single with one more of everything.
    """
    one, pairs, after = Counter(), Counter(), Counter()
    for row in learnt:
        one.update(row[1:])
        pairs.update(pairwise(row))
        after.update(row[:-1])
    follow = Counter(first for first, _ in pairs)  # different tokens after it
    total, found = one.total() + vocabulary, {"unigram": 0.0, "bigram": 0.0}
    for row in rows:
        for first, second in pairwise(row):
            single = (one[second] + 1) / total
            seen = pairs[first, second] + follow[first] * single
            both = seen / (after[first] + follow[first]) if after[first] else single
            found["unigram"] -= log(single)
            found["bigram"] -= log(both)
    return found


# --- other routes


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks that go again at the end."""
    with ExitStack() as stack:
        for each in handles:
            stack.enter_context(each)
        yield


def routers(model: ZayaForCausalLM) -> list[Module]:
    return [layer.mlp.gate for layer in model.model.layers]


def rerouted(model: ZayaForCausalLM, change: Change) -> AbstractContextManager[None]:
    """The model with other choices of its experts; the gate is the one that the router gave."""

    def hook(router, inputs, outputs):
        logits, gates, choices, state = outputs
        return logits, *change(gates, choices, logits.softmax(-1)), state

    return hooked(each.register_forward_hook(hook) for each in routers(model))


def forgetful(model: ZayaForCausalLM) -> AbstractContextManager[None]:
    """The model whose routers are not handed the state of the layer before."""

    def hook(router, inputs, keywords):
        return inputs, keywords | {"router_states": None}

    return hooked(each.register_forward_pre_hook(hook, with_kwargs=True) for each in routers(model))


def first_expert(gates, choices, chances):
    """One expert for all that do not skip."""
    return gates, torch.zeros_like(choices)


def shifted(gates, choices, chances):
    """The routes of a layer kept apart, and every one led to the next expert."""
    return gates, (choices + 1) % (chances.shape[1] - 1)


def shuffled(generator, gates, choices, chances):
    """The choices of a text's tokens dealt out among them anew: the same load, for no reason."""
    order = torch.randperm(len(gates), generator=generator)
    return gates[order], choices[order]


def unbalanced(gates, choices, chances):
    """The likeliest class, without the biases."""
    best, found = chances.max(-1, keepdim=True)
    skip = found == chances.shape[1] - 1
    return best.masked_fill(skip, 0), found.masked_fill(skip, 0)


def all_skip(gates, choices, chances):
    """No expert at all."""
    return torch.zeros_like(gates), choices


def conditions(model: ZayaForCausalLM) -> dict[str, Callable]:
    """Ways to run the model, by name: each makes a context."""
    generator = torch.Generator().manual_seed(0)
    change = partial(rerouted, model)
    return {
        "every route to the next expert": partial(change, shifted),
        "routes shuffled among tokens": partial(change, partial(shuffled, generator)),
        "always expert 0": partial(change, first_expert),
        "no expert at all": partial(change, all_skip),
        "without the balancing biases": partial(change, unbalanced),
        "router state not handed on": partial(forgetful, model),
    }


# --- what the routers choose


@torch.inference_mode()
def chosen(model: ZayaForCausalLM, rows: Ids) -> tuple[Tensor, Tensor]:
    """Of every token of the rows, the class that each layer chose (tokens, L), and the gates."""
    seen = [[] for _ in model.model.layers]

    def hook(i, router, inputs, outputs):
        _, gates, *_ = outputs
        seen[i].append(torch.stack([routes(outputs, router.num_experts), gates[:, 0]]))

    hooks = (each.register_forward_hook(partial(hook, i)) for i, each in enumerate(routers(model)))
    with hooked(hooks):
        for row in rows:
            model(input_ids=torch.tensor([row]), use_cache=False)
    classes, gates = torch.stack([torch.cat(each, dim=1) for each in seen], dim=1).unbind()
    return classes.long().T, gates.T


def kind(tokenizer: Tokenizer, token: int) -> str:
    """Which of `KINDS` a token is, by its text; a byte of a character is a part of a word."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    if token == 0:
        return "END"
    if not text.strip():
        return "line break, space"
    if text.strip().isdigit():
        return "digit"
    if re.fullmatch(r"\s*[^\w\s]+", text) and "\ufffd" not in text:
        return "punctuation"
    return "begins a word" if text[0].isspace() or text[0].isupper() else "goes on with a word"


def habits(classes: Tensor, gates: Tensor, kinds: list[str]) -> list[dict]:
    """Of each layer: loads, their entropy, how much a route says of its token's kind (in bits)."""
    found, size = [], 17
    which = torch.tensor([KINDS.index(each) for each in kinds])
    for layer, gate in zip(classes.T, gates.T, strict=True):
        table = torch.zeros(len(KINDS), size).index_put_(
            (which, layer), torch.ones(len(layer)), accumulate=True
        )
        load = table.sum(0) / table.sum()
        share = table / table.sum(1, keepdim=True).clamp_min(1)
        found.append(
            {
                "load": [round(float(x), 4) for x in load],
                "entropy_bits": round(entropy(load), 3),
                "mean_gate": round(float(gate.mean()), 3),
                "bits_about_kind": round(
                    entropy(load) + entropy(table.sum(1) / table.sum())
                    - entropy(table.flatten() / table.sum()), 3
                ),
                "kinds": {
                    name: [[int(e), round(float(share[k, e]), 3)] for e in share[k].topk(3).indices]
                    for k, name in enumerate(KINDS)
                },
            }
        )  # fmt: skip
    return found


def entropy(shares: Tensor) -> float:
    shares = shares[shares > 0]
    return float(-(shares * shares.log2()).sum())


# --- the record


def measure(folder: Path, learnt: list[str], held_out: list[dict]) -> dict:
    """Everything that record.json says of quality and of routes."""
    model, tokenizer = load(folder)
    known, found = windows(tokenizer, learnt), {}
    for part in ("sampled", "repository"):
        texts = [t["text"] for t in held_out if (t["kind"] == "repository") == (part != "sampled")]
        rows = windows(tokenizer, texts)
        surprise = {"model": nats(model, rows)}
        surprise |= by_counting(known, rows, model.config.vocab_size)
        for name, condition in conditions(model).items():
            with condition():
                surprise[name] = nats(model, rows)
        kinds = [kind(tokenizer, token) for row in rows for token in row]
        found[part] = {
            "quality": {name: figures(value, rows, texts) for name, value in surprise.items()},
            "routes": habits(*chosen(model, rows), kinds),
        }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="what zaya_text.py wrote")
    parser.add_argument("--out", type=Path, default=RESULT, help="the model's folder")
    given = parser.parse_args()
    torch.set_num_threads(1)
    learnt, held_out = parted(sampled(given.text) + repository())
    texts = [each["text"] for each in learnt]
    saved = torch.load(given.text / "checkpoint.pt", weights_only=True)
    if saved["settings"]["text_sha256"] != digest(texts):
        raise SystemExit(f"{given.text}, or this repository, holds other texts than were learnt")
    record = {
        "made_by": "research/train/zaya.py, zaya_record.py",
        "commit": commit(),
        "files": {path.name: sha256(path) for path in sorted(given.text.glob("[0-9]*.jsonl"))},
        "held_out": len(held_out),
        "settings": saved["settings"],
        "steps": saved["step"],
        "sha256": sha256(given.out / "model.safetensors"),
        "parameters": sum(w.numel() for w in load_file(given.out / "model.safetensors").values()),
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers)},
        "curve": saved["curve"],
    } | measure(given.out, texts, held_out)
    text = json.dumps(record, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    (given.out / "record.json").write_text(text + "\n", encoding="utf-8")
    lines = [json.dumps(each, ensure_ascii=False) for each in held_out]
    HELD_OUT_TEXT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def commit() -> str:
    """The commit whose Markdown was learnt."""
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, check=True)
    return done.stdout.decode().strip()


if __name__ == "__main__":
    main()
