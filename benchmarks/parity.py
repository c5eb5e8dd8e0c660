"""Tokens and logits of SmolLM2 through the packages, against `transformers`: 20 prompts, 64 tokens.

fp32: greedy tokens with kv="state" and kv="host" must be those of `transformers` in float32, with
the same weights (rounded to fp16, as a package stores them). fp16: how often the next token is the
same when both are fed the reference's tokens, and the cosine of their logits.
"""

from _common import bundle, record, reference_model
from ane_book.runtime import Session
import numpy as np
import torch

NEW_TOKENS, CONTEXT = 64, 512

LONG = "The lighthouse keeper wrote down every ship that passed. " * 30
PROMPTS = [
    "What is the capital of France?",
    "Hi",
    "Write a haiku about the sea.",
    "Explain why the sky is blue to a child.",
    "List three prime numbers greater than 100.",
    "Write a Python function that reverses a linked list.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "SELECT name FROM users WHERE",
    "Quelle est la capitale de l'Italie ?",
    "Racontez une courte histoire d'un chat qui voyage à Marseille.",
    "¿Cuántos días tiene un año bisiesto?",
    "日本の首都はどこですか。",
    "1, 1, 2, 3, 5, 8, 13,",
    "What is 17 * 23? Think step by step.",
    "🙂 What does this emoji mean?",
    "Summarise: " + LONG[:900],
    "Translate to German: The weather is nice today, but it may rain tomorrow evening.",
    ("", "Say hello."),  # an empty system prompt
    ("You answer in one word.", "Is water wet?"),
    "Continue the story. " + LONG,  # cut to end exactly at the context limit
]


def token_ids(session: Session, prompt: str | tuple[str, str]) -> list[int]:
    """The chat prompt as tokens, cut so that 64 more fit the context."""
    system, text = prompt if isinstance(prompt, tuple) else (None, prompt)
    ids = session.encode(text, system)
    return ids[: CONTEXT - NEW_TOKENS]


def greedy(session: Session, ids: list[int], tokens: int = NEW_TOKENS) -> list[int]:
    session.reset()
    logits, found = session.prefill(ids), []
    for _ in range(tokens):
        found.append(int(logits.argmax()))
        if len(found) < tokens:
            logits = session.decode(found[-1])
    return found


def reference_greedy(model, ids: list[int], tokens: int = NEW_TOKENS) -> list[int]:
    cache, step, found = None, torch.tensor([ids]), []
    for _ in range(tokens):
        output = model(step, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        found.append(int(output.logits[0, -1].argmax()))
        step = torch.tensor([[found[-1]]])
    return found


def compare(session: Session, expected: torch.Tensor, ids: list[int], prompt: int) -> dict:
    """fp16 against the reference's logits (n, V) on the same tokens, for the generated part."""
    session.reset()
    a = session.logits(ids)[prompt - 1 :].astype(np.float64)
    b = expected.numpy()[prompt - 1 :].astype(np.float64)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    top = np.sort(b, axis=1)[:, -2:]
    differ = a.argmax(1) != b.argmax(1)
    return {"same": ~differ, "cosine": cosine, "margin": (top[:, 1] - top[:, 0])[differ]}


def main() -> None:
    model = reference_model()
    exact = {kv: Session(bundle(kv=kv), precision="fp32") for kv in ("state", "host")}
    half = Session(bundle(kv="state"), precision="fp16")
    equal, rows = {"state": 0, "host": 0}, []
    with torch.inference_mode():
        for prompt in PROMPTS:
            ids = token_ids(half, prompt)
            expected = reference_greedy(model, ids)
            for kv, session in exact.items():
                equal[kv] += greedy(session, ids) == expected
            forced = ids + expected[:-1]
            rows.append(compare(half, model(torch.tensor([forced])).logits[0], forced, len(ids)))
            name = str(prompt)[:40]
            print(f"{name!r:45} {len(ids):4} tokens, fp16 agrees {rows[-1]['same'].mean():.3f}")
    same, cosine, margin = (np.concatenate([r[k] for r in rows]) for k in rows[0])
    print(f"fp32 tokens equal: {equal} of {len(PROMPTS)} prompts")
    print(f"fp16: same next token {same.mean():.4f} of {same.size}, cosine >= {cosine.min():.6f}")
    print(f"where fp16 differs, the reference's lead was {np.sort(margin).round(4).tolist()}")
    record(
        "parity",
        {
            "prompts": len(PROMPTS),
            "new_tokens": NEW_TOKENS,
            "fp32_prompts_equal": equal,
            "fp16_same_next_token": float(same.mean()),
            "fp16_cosine_min": float(cosine.min()),
            "fp16_cosine_mean": float(cosine.mean()),
            "fp16_margins_where_different": sorted(float(m) for m in margin),
        },
    )


if __name__ == "__main__":
    main()
