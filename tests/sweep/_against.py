"""A case run: the checkpoint made and converted, each run held to `transformers`.

The reference reads the same folder as the conversion, in float32. Where weights are quantised, its
own are replaced by what was stored, made of them anew (`Encoded.weight`); so that in single
precision whatever is further off than `EXACT` is a fault. In half precision vectors may turn by no
more than `TURNED`; but for one token in twenty of a mixture of experts, whose router may then take
the other of two that are nearly equal.

The modes of a run, of tokens `ids`:

    answer   prefill(ids), then the likeliest token again and again, `answer` times
    full     the same up to the last slot; one token more must be refused
    logits   logits(ids) in one call
    pieces   prefill(ids[:cut]), prefill(ids[cut:])
    rewind   prefill(ids), rewind(cut), logits of the rest of `ids` turned round
    labels   a tagger's logits(ids)
"""

from contextlib import suppress
import json
from pathlib import Path
import re
import time

from _cases import Case
from _tiny import write_checkpoint
import ane_book
from ane_book.conversion.plan.programs import head_splits
from ane_book.conversion.quantize.encoded import encode
from ane_book.conversion.quantize.schemes import SCHEMES
from ane_book.errors import AneBookError, PromptTooLong
from ane_book.models import find, read_config
from ane_book.runtime import Session
from ane_book.runtime.tags import Tagger
import numpy as np
from safetensors import safe_open
import torch

EXACT = 1e-4  # of the largest logit: single precision
TURNED = 0.99  # cosine: half precision
GOOD = ("right", "tie", "refused")


def judge(case: Case, folder: Path) -> list[dict]:
    """A record of every run; of one only where the conversion is refused."""
    started = time.perf_counter()
    try:
        reference = make(case, folder / "checkpoint")
        if case.refused is None:
            reference = read(case, folder / "checkpoint")
        bundle = ane_book.convert(str(folder / "checkpoint"), folder / "bundle", **case.recipe)
        if case.refused is None:
            replace(reference, case)
    except AneBookError as error:
        return [refusal(case, error) | {"seconds": since(started)}]
    if case.refused is not None:
        return [record(case, 0, "miss", message=f"not refused: {case.refused}")]
    sessions, records = {}, []
    for i, run in enumerate(case.runs):
        kind = Tagger if run["mode"] == "labels" else Session
        if run["precision"] not in sessions:
            sessions[run["precision"]] = kind(bundle, precision=run["precision"])
        found = measure(case, run, sessions[run["precision"]], reference)
        outcome = found.pop("outcome")
        records.append(record(case, i, outcome, **found, seconds=since(started)))
        started = time.perf_counter()
    return records


def since(started: float) -> float:
    return round(time.perf_counter() - started, 3)


def record(case: Case, run: int, outcome: str, **more) -> dict:
    """One line: where, what, and what came of it."""
    own = {k: v for k, v in case.runs[run].items() if k != "ids"}
    own["tokens"] = len(case.runs[run]["ids"])
    return {"case": case.number, "run": run, "outcome": outcome} | more | case.facts() | own


def refusal(case: Case, error: AneBookError) -> dict:
    """A refusal is right where it is wanted and says in one line what is refused."""
    said = str(error)
    wanted = case.refused is not None and re.search(re.escape(case.refused), said)
    right = wanted and "\n" not in said
    return record(
        case, 0, "refused" if right else "miss", message=f"{type(error).__name__}: {said}"
    )


# --- the checkpoint


def make(case: Case, folder: Path):
    """A random model of `transformers`, written to `folder`; its weights are those of fp16."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

    usual = {"bos_token_id": None, "eos_token_id": 256, "pad_token_id": None}
    config = AutoConfig.for_model(case.family, **usual | json.loads(json.dumps(case.fields)))
    kind = AutoModelForCausalLM
    if case.family == "openai_privacy_filter":
        kind = AutoModelForTokenClassification
    torch.manual_seed(case.number)
    model = kind.from_config(config).eval().requires_grad_(False)
    kept = torch.bfloat16 if case.dtype == "bfloat16" else torch.float16
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *_buffers(model)]:
            _spread(name, value)
            value.copy_(value.to(kept).half().float())
    model.to(getattr(torch, case.dtype))
    write_checkpoint(model, folder)  # of which the tokenizer is not looked at
    if case.sharded:
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="60KB")
    if case.old:
        _write_old(folder / "config.json", case.number)
    return model


def _buffers(model) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in model.named_buffers() if "inv_freq" not in name]


def _spread(name: str, value: torch.Tensor) -> None:
    """Numbers that tell a wrong token from a right one, and no norm all ones."""
    noise = torch.randn_like(value)
    last = name.rsplit(".", 1)[-1]
    if last in ("temp", "balancing_biases"):  # ZAYA's: of 0, and -1 for the class of no expert
        value.copy_(noise * 0.2 + (1.0 if last == "temp" else 0.0))
    elif value.dim() == 1:
        value.add_(noise * 0.2)
    elif "router_mlp" in name:
        value.mul_(20.0)
    elif "embed" not in name and "conv" not in name:
        value.mul_(3.0)
    if value.dim() == 1:  # coarser, so that what is 1 more is in fp16 too
        value.copy_((value * 64).round() / 64)


def _write_old(path: Path, number: int) -> None:
    """config.json in the words of transformers 4: rope_theta, rope_scaling, torch_dtype."""
    fields = json.loads(path.read_text())
    rope = fields.pop("rope_parameters")
    if local := rope.get("sliding_attention"):  # Gemma 3
        fields["rope_local_base_freq"], rope = local["rope_theta"], rope["full_attention"]
    fields["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        fields["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope["rope_type"] == "default":
        fields["rope_scaling"] = None
    else:
        kind = rope.pop("rope_type")
        if fields["model_type"] == "phi3":  # what it was called by and by
            kind = ("yarn", "longrope")[number % 2]
        word = "rope_type" if fields["model_type"] == "gemma3_text" else "type"
        fields["rope_scaling"] = {word: kind} | rope
    fields["torch_dtype"] = fields.pop("dtype")
    path.write_text(json.dumps(fields))


def read(case: Case, folder: Path):
    """What `transformers` makes of the folder, in float32."""
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    kind = AutoModelForCausalLM
    if case.family == "openai_privacy_filter":
        kind = AutoModelForTokenClassification
    model = kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    _restore(model, folder)
    return model.eval().requires_grad_(False)


def _restore(model, folder: Path) -> None:
    """ZAYA's biases of the router as the file has them.

    transformers 5.23 sets that of the class which is no expert to -1 after it has read them.
    """
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                if name.endswith("balancing_biases"):
                    model.get_buffer(name).copy_(file.get_tensor(name))


def replace(model, case: Case) -> None:
    """Put what is stored of the reference's matrices in their place."""
    quant = case.recipe.get("quant", "none")
    head = case.recipe.get("quant_head", quant)
    if quant == head == "none":
        return
    own = model.lm_head.weight.clone()  # no longer the embedding's
    model.lm_head.weight = torch.nn.Parameter(own, requires_grad=False)
    splits = head_splits(case.fields["vocab_size"], case.recipe["head_rows"])
    for part in model.lm_head.weight.split(list(splits)):
        part.copy_(_stored([part], head))
    config = read_config(model.config.to_dict())
    architecture, parameters = find(case.family), dict(model.named_parameters())
    for layer, kind in enumerate(architecture.kinds(config)):
        prefix = f"{architecture.checkpoint(config).layers}.{layer}"
        for parts in architecture.parameters(config, kind).values():
            values = [parameters[f"{prefix}.{part.name}"] for part in parts]
            if values[0].dim() == 2:
                fused = _stored(values, quant).split([len(value) for value in values])
                for value, new in zip(values, fused, strict=True):
                    value.copy_(new)


def _stored(parts: list[torch.Tensor], quant: str) -> torch.Tensor:
    fused = torch.cat(list(parts))[:, :, None, None]
    return encode(fused, SCHEMES[quant]).weight()[:, :, 0, 0]


# --- a run


def measure(case: Case, run: dict, session, reference) -> dict:
    """What came of a run: its outcome, its error, and how many tokens are those of near ties."""
    if run["mode"] == "labels":
        found = np.vstack(list(session.logits(np.array(run["ids"]))))
        ids, places = run["ids"], range(len(run["ids"]))
    else:
        session.reset()
        ids, places, found = MODES[run["mode"]](session, run)
    expected = said(case, reference, ids)[list(places)]
    if run["mode"] == "full":
        with suppress(PromptTooLong):
            session.decode(0)
            return {"outcome": "miss", "message": "a token beyond the context was taken"}
    return compare(found, expected, run["precision"], "experts" in case.recipe)


def compare(found: np.ndarray, expected: np.ndarray, precision: str, mixture: bool = False) -> dict:
    """Logits (n, V), or the tokens (n,) of a bundle that gives no more, with logits (n, V)."""
    best, scale = expected.argmax(axis=1), float(np.abs(expected).max())
    if found.ndim == 1:
        rows = np.arange(len(found))
        error = float((expected[rows, best] - expected[rows, found]).max() / scale)
        ties, good = int((found != best).sum()), error <= 2 * EXACT
    else:
        error = float(np.abs(found - expected).max() / scale)
        ties, good = int((found.argmax(axis=1) != best).sum()), error <= EXACT
    result = {"error": error, "ties": ties}
    if precision == "fp16":
        sizes = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        cosines = (found * expected).sum(axis=1) / sizes
        turned = int((~(cosines >= TURNED)).sum())  # NaN too
        ties, good = max(ties, turned), turned <= mixture * len(found) / 20
        result |= {"ties": ties, "turned": turned, "cosine": float(cosines.min())}
    return {"outcome": ("tie" if ties else "right") if good else "miss"} | result


def said(case: Case, reference, ids: list[int]) -> np.ndarray:
    """The logits (n, V) of `transformers`.

    LongRoPE's short or long divisors go by the length of what is computed there, and by the context
    here; so a longer context is computed with tokens behind, which change nothing else.
    """
    rope = reference.config.rope_parameters
    rope = rope.get("full_attention", rope)
    more = []
    if rope.get("rope_type") == "longrope":
        most = reference.config.max_position_embeddings  # what transformers takes where it's unsaid
        original = rope.get("original_max_position_embeddings", most)
        if case.recipe["context"] > original >= len(ids):
            more = [0] * (original + 1 - len(ids))
    with torch.no_grad():
        logits = reference(torch.tensor([[*ids, *more]])).logits[0, : len(ids)]
    return logits.float().numpy()


def _answer(session: Session, run: dict) -> tuple:
    ids, found = list(run["ids"]), [session.prefill(run["ids"])]
    for _ in range(run["answer"]):
        ids.append(int(found[-1] if np.ndim(found[-1]) == 0 else found[-1].argmax()))
        found.append(session.decode(ids[-1]))
    return ids, range(len(run["ids"]) - 1, len(ids)), np.stack(found)


def _logits(session: Session, run: dict) -> tuple:
    if session.bundle.recipe.argmax_output:
        return _answer(session, run)
    return run["ids"], range(len(run["ids"])), session.logits(run["ids"])


def _pieces(session: Session, run: dict) -> tuple:
    ids, cut = run["ids"], run["cut"]
    parts = [part for part in (ids[:cut], ids[cut:]) if part]
    found = [session.prefill(part) for part in parts]
    return ids, np.cumsum([len(part) for part in parts]) - 1, np.stack(found)


def _rewind(session: Session, run: dict) -> tuple:
    ids, cut = run["ids"], run["cut"]
    session.prefill(ids)
    session.rewind(cut)
    rest = ids[cut:][::-1]
    _, places, found = _logits(session, run | {"ids": rest})
    return [*ids[:cut], *rest], [cut + place for place in places], found


MODES = {
    "answer": _answer, "full": _answer, "logits": _logits, "pieces": _pieces, "rewind": _rewind,
}  # fmt: skip
