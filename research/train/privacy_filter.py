"""Train the small Privacy Filter, on one core in half an hour.

    python research/train/privacy_filter.py            train, or go on where it stopped
    python research/train/privacy_filter.py --export   and write it to ane_book/reference/

The model is `transformers`' own, so that what is trained is what the full model is, in small; the
text is made up (`texts`). Whoever stops it loses at most 25 steps.

Reference for the loss that keeps experts in use: Fedus et al. 2021 (arXiv 2101.03961), eq. 4.
"""

import argparse
from importlib.metadata import version
import json
from pathlib import Path
import platform

from runs import Schedule, save_half, train
from texts.tokens import IGNORED, Rows, train_tokenizer
from tokenizers import Tokenizer
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import OpenAIPrivacyFilterConfig, OpenAIPrivacyFilterForTokenClassification

ROOT = Path(__file__).resolve().parents[2]
NAME = "privacy-filter-small"
RESULT = ROOT / "ane_book" / "reference" / NAME
WORK = ROOT / "build" / "train" / NAME

SEED = 11
CYCLES = (600, 700, 400)
VOCABULARY = 8000
TOKENIZER_TEXTS = 20_000
ROWS, TOKENS = 16, 128
BALANCE = 0.01  # of the loss that keeps experts in use
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 32,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "pad_token_id": None,
    "eos_token_id": None,
}


def make_model(sizes: dict, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = OpenAIPrivacyFilterForTokenClassification._from_config(
        OpenAIPrivacyFilterConfig(**sizes),
        attn_implementation="eager",
        experts_implementation="grouped_mm",  # the same numbers as one expert at a time, sooner
    )
    return model.float()


class Balance:
    """What the routers of a model choose: a loss that is 1 where all experts have equal shares."""

    def __init__(self, model: nn.Module):
        self._seen: list[tuple[Tensor, Tensor]] = []
        for layer in model.model.layers:
            layer.mlp.router.register_forward_hook(self._see)

    def _see(self, module: nn.Module, inputs: tuple, output: tuple) -> None:
        logits, _, chosen = output
        self._seen.append((logits, chosen))

    def take(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The loss since the last call, and the experts' shares, (layers, E); mask: (tokens,)."""
        losses, shares = [], []
        for logits, chosen in self._seen:
            E = logits.shape[1]
            used = F.one_hot(chosen, E).sum(dim=1).float()[mask].mean(dim=0) / chosen.shape[1]
            likely = logits.softmax(dim=1)[mask].mean(dim=0)
            losses.append(E * (used.detach() * likely).sum())
            shares.append(used)
        self._seen.clear()
        return torch.stack(losses).mean(), torch.stack(shares)


def make_step(model: nn.Module, rows: Rows):
    """`step(number)`: the loss of a batch, and what the learning curve shows of it."""
    balance = Balance(model)

    def step(number: int) -> tuple[Tensor, dict[str, float]]:
        ids, labels, mask = (torch.from_numpy(part) for part in rows.batch(number))
        logits = model(input_ids=ids, attention_mask=mask).logits.flatten(0, 1)
        labels = labels.flatten()
        own = F.cross_entropy(logits, labels, ignore_index=IGNORED)
        extra, shares = balance.take(mask.flatten().bool())
        private = labels > 0
        right = (logits.argmax(dim=1) == labels)[private].float().mean()
        seen = {
            "labels": float(own.detach()),
            "right": float(right),  # the part of private tokens with their very label
            "balance": float(extra.detach()),
            "least_used": float(shares.min()),
        }
        return own + BALANCE * extra, seen

    return step


def _tokenizer(work: Path) -> Tokenizer:
    path = work / "tokenizer.json"
    if not path.exists():
        made = train_tokenizer(TOKENIZER_TEXTS, VOCABULARY, SEED)
        work.mkdir(parents=True, exist_ok=True)
        made.save(str(path))
    return Tokenizer.from_file(str(path))


def shares(model: nn.Module, rows: Rows, batches: int = 8) -> list[list[float]]:
    """How often each expert of each layer is chosen, of all choices; no training saw the text."""
    balance, found = Balance(model), []
    with torch.inference_mode():
        for number in range(batches):
            ids, _, mask = (torch.from_numpy(part) for part in rows.batch(-1 - number))
            model(input_ids=ids, attention_mask=mask)
            found.append(balance.take(mask.flatten().bool())[1])
    return [[round(float(x), 4) for x in layer] for layer in torch.stack(found).mean(dim=0)]


def _export(model: nn.Module, rows: Rows, work: Path, settings: dict, curve: list) -> None:
    RESULT.mkdir(parents=True, exist_ok=True)
    names = {"id2label": model.config.id2label, "label2id": model.config.label2id}
    kind = {"model_type": model.config.model_type, "architectures": [type(model).__name__]}
    _write("config.json", kind | SIZES | names | {"dtype": "float16"})
    _write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    words = Tokenizer.from_file(str(work / "tokenizer.json"))
    words.save(str(RESULT / "tokenizer.json"), pretty=False)
    size = save_half(model, RESULT / "model.safetensors")
    versions = {name: version(name) for name in ("torch", "transformers", "tokenizers", "faker")}
    record = {
        "made_by": "research/train/privacy_filter.py --export",
        "settings": settings,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": size,
        "tokens": curve[-1]["step"] * ROWS * TOKENS,
        "versions": versions | {"python": platform.python_version()},
        "shares_of_experts": shares(model, rows),
        "curve": curve,
    }
    _write("record.json", record)
    print(f"{RESULT}: {size:,} bytes")


def add_to_record(**fields) -> None:
    """Say more of the model in its record.json, or say it anew."""
    _write("record.json", json.loads((RESULT / "record.json").read_text()) | fields)


def _write(name: str, fields: dict) -> None:
    (RESULT / name).write_text(json.dumps(fields, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, nargs="+", default=CYCLES, help="steps of each")
    parser.add_argument("--stop-at", type=int, help="stop after so many steps, to go on later")
    parser.add_argument("--export", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    parser.add_argument("--work", type=Path, default=WORK, help="checkpoint and tokenizer")
    given = parser.parse_args()
    torch.set_num_threads(1)
    schedule = Schedule(given.cycles[0], every=25, more=tuple(given.cycles[1:]))
    settings = {"sizes": SIZES, "seed": SEED, "rows": ROWS, "tokens": TOKENS, "balance": BALANCE}
    settings |= {"tokenizer_texts": TOKENIZER_TEXTS}
    model = make_model(SIZES, SEED)
    rows = Rows(_tokenizer(given.work), ROWS, TOKENS, SEED)
    step, checkpoint = make_step(model, rows), given.work / "checkpoint.pt"
    curve = train(model, step, schedule, checkpoint, settings, given.stop_at)
    if given.export:
        settings |= {"schedule": vars(schedule)}
        _export(model, rows, given.work, settings, curve)


if __name__ == "__main__":
    main()
