"""Train zaya-small: a ZAYA of two million parameters, on text that `zaya_text.py` sampled.

    python research/train/zaya_text.py TEXT --batches 3
    python research/train/zaya.py TEXT
    python research/train/zaya_record.py TEXT

One thread; stopped, it goes on from TEXT/checkpoint.pt with the same result. It learns the sampled
text and the Markdown of this repository; every eighth text of either is held out.

The model is `transformers`' own. Two things it leaves to whoever trains it. The scale of the keys
begins at 0 there, at which all keys are equal; here at 1, at which queries and keys of a length of
sqrt(D) give scores of up to sqrt(D). And the biases that balance the router have no gradient: here
they move as those of DeepSeek-V3 do (arXiv 2412.19437, 2.1.2), a little up for an expert that got
fewer tokens than its share in this step, a little down for one that got more, here by how much it
was. ZAYA's authors call theirs "inspired by control theory"; the class that skips is balanced here
like an expert, its bias beginning at 0 and not at -1, so that it is used and the others learn what
it is worth.
"""

import argparse
from dataclasses import dataclass
from functools import partial
import hashlib
import json
from pathlib import Path
from typing import ClassVar

from runs import Schedule, save_half, train
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
import torch
from torch import Tensor
from transformers import ZayaConfig, ZayaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
END = "<|endoftext|>"  # between texts: token 0
RESULT = ROOT / "ane_book/reference/zaya-small"
HELD_OUT = 8  # of so many texts one is not learnt
MARKDOWN = ("README.md", "book/*.md", "research/*.md")
SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 16,
    "moe_intermediate_size": 64,
    "router_hidden_size": 32,
    "layer_types": ["hybrid", "hybrid_sliding"] * 2,
    "sliding_window": 64,
    "max_position_embeddings": 1024,
}


@dataclass(frozen=True)
class Run:
    """What makes a run what it is; the same run gives the same weights."""

    seed: int = 11
    vocabulary: int = 2048
    window: int = 256  # tokens of a sequence
    sequences: int = 4  # of a step
    balance: float = 1e-2  # by which a bias moves at most in a step, in probability
    steps: int = 1400
    rate: float = 3e-3  # of learning
    sizes: ClassVar[dict] = SIZES

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.rate, warm_up=60, decay=0.1, every=25)

    def config(self) -> ZayaConfig:
        tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
        return ZayaConfig(
            vocab_size=self.vocabulary, initializer_range=0.04, **tokens, **self.sizes
        )


# --- text


def sampled(folder: Path) -> list[dict]:
    """The texts of `zaya_text.py`, but for those that say a thing again and again."""
    paths = sorted(folder.glob("[0-9]*.jsonl"))
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [each for each in map(json.loads, lines) if varied(each["text"])]


def varied(text: str) -> bool:
    """Whether most runs of three words in it are there once."""
    words = text.split()
    runs = list(zip(words, words[1:], words[2:], strict=False))
    return len(runs) > 5 and len(set(runs)) > 0.7 * len(runs)


def repository() -> list[dict]:
    """The sections of the project's Markdown."""
    paths = sorted(path for pattern in MARKDOWN for path in ROOT.glob(pattern))
    texts = [part for path in paths for part in path.read_text("utf-8").split("\n## ")]
    return [{"kind": "repository", "text": text.strip() + "\n"} for text in texts]


def parted(texts: list[dict]) -> tuple[list[dict], list[dict]]:
    """What is learnt and what is held out."""
    held_out = texts[::HELD_OUT]
    return [each for i, each in enumerate(texts) if i % HELD_OUT], held_out


def make_tokenizer(texts: list[str], size: int) -> Tokenizer:
    """Byte-level BPE; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    return tokenizer


def stream(tokenizer: Tokenizer, texts: list[str], seed: int) -> Tensor:
    """The tokens of all texts in a mixed order, each text after an END."""
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    encoded = tokenizer.encode_batch([texts[i] for i in order])
    return torch.tensor([token for each in encoded for token in each.ids])


# --- model


def make_model(run: Run) -> ZayaForCausalLM:
    torch.manual_seed(run.seed)
    model = ZayaForCausalLM(run.config())
    torch.nn.init.constant_(
        model.model.input_hidden_states_scale, 1 / model.config.initializer_range
    )
    for layer in model.model.layers:
        torch.nn.init.ones_(layer.self_attn.qk_norm.temp)
        layer.mlp.gate.balancing_biases.zero_()
        _spread(layer.mlp.gate.router_mlp)
    return model


def _spread(router: torch.nn.Module) -> None:
    """Scores of about 1 from the first step on: of nearly equal ones a router's choice is noise
    that all tokens share, and one expert gets them all."""
    for layer, gain in ((router.fc1, 2), (router.fc2, 2), (router.out_proj, 1)):
        torch.nn.init.normal_(layer.weight, std=(gain / layer.in_features) ** 0.5)


class Balance:
    """Counts what each router chooses, and moves its biases against it."""

    def __init__(self, model: ZayaForCausalLM, rate: float):
        self.rate, self.routers = rate, [layer.mlp.gate for layer in model.model.layers]
        self.chosen: list[Tensor | None] = [None] * len(self.routers)
        for i, router in enumerate(self.routers):
            router.register_forward_hook(partial(self._see, i))

    def _see(self, i: int, router, inputs, outputs) -> None:
        self.chosen[i] = routes(outputs, router.num_experts)

    def move(self) -> dict[str, float]:
        """One step of every bias; returns the worst load, in shares of a fair one, and skips."""
        loads = torch.stack(
            [c.bincount(minlength=r.num_router_classes) for c, r in self._pairs()]
        ).float()
        shares = loads / loads.mean(dim=1, keepdim=True)
        for router, share in zip(self.routers, shares, strict=True):
            router.balancing_biases += self.rate * (1 - share).clamp(-1, 1)
        skipped = loads[:, -1].sum() / loads.sum()
        return {"most": float(shares.max()), "skipped": float(skipped)}

    def _pairs(self):
        return zip(self.chosen, self.routers, strict=True)


def routes(outputs: tuple, experts: int) -> Tensor:
    """What a router chose for each token, from what its module returns; `experts` is: to skip."""
    _, gates, indices, _ = outputs
    return torch.where(gates[:, 0] == 0, experts, indices[:, 0])


def step_loss(model, tokens: Tensor, balance: Balance, run: Run, step: int):
    """The loss of one step: windows of the stream at places that seed and step give."""
    generator = torch.Generator().manual_seed(run.seed * 1_000_003 + step)
    starts = torch.randint(len(tokens) - run.window, (run.sequences, 1), generator=generator)
    ids = tokens[starts + torch.arange(run.window)]
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss, balance.move()


def digest(texts: list[str]) -> str:
    """sha256 of all texts, in hexadecimal."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def learn(run: Run, texts: list[str], checkpoint: Path, stop_at: int | None = None):
    """Train, or go on; returns the model, its tokenizer, what the run is, the learning curve."""
    tokenizer = make_tokenizer(texts, run.vocabulary)
    tokens = stream(tokenizer, texts, run.seed)
    model = make_model(run)
    loss = partial(step_loss, model, tokens, Balance(model, run.balance), run)
    about = {
        "seed": run.seed,
        "texts": len(texts),
        "tokens": len(tokens),
        "text_sha256": digest(texts),
        "batch": [run.sequences, run.window],
        "balance": run.balance,
    }
    curve = train(model, loss, run.schedule, checkpoint, about, stop_at)
    return model, tokenizer, about, curve


def write(model: ZayaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """The model as a folder that `transformers` and this library read."""
    folder.mkdir(parents=True, exist_ok=True)
    save_half(model, folder / "model.safetensors")
    config = model.config.to_diff_dict() | {"dtype": "float16"}
    config.pop("transformers_version")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    place = folder / "tokenizer_config.json"
    place.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="what zaya_text.py wrote")
    parser.add_argument("--steps", type=int, default=Run.steps)
    parser.add_argument("--stop-at", type=int, help="stop after so many steps, to go on later")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = Run(steps=given.steps)
    texts, _ = parted(sampled(given.text) + repository())
    checkpoint = given.text / "checkpoint.pt"
    model, tokenizer, *_ = learn(run, [t["text"] for t in texts], checkpoint, given.stop_at)
    write(model, tokenizer, given.out)


if __name__ == "__main__":
    main()
