"""What the answering commands have in common: their options, and how an answer is shown."""

import sys
from typing import TYPE_CHECKING

from ane_book.errors import printable

if TYPE_CHECKING:
    from ane_book.runtime import Result

#: The fields of `Recipe` and `Sampling` that the answering commands take as options.
RECIPE = ("kv", "context", "tiers", "quant", "verify", "lora_slots")
SAMPLING = (
    "system", "reasoning_effort", "max_tokens", "temperature", "top_k", "top_p", "seed",
    "stop_repeat",
)  # fmt: skip


def statistics(result: "Result") -> str:
    """One line with the statistics of an answer."""
    measured = {"prefill": result.prefill_tps, "decode": result.decode_tps}
    rates = [f"{name} {rate:.1f} tokens/s" for name, rate in measured.items() if rate is not None]
    counts = f"{result.prompt_tokens} + {len(result.token_ids)} tokens"
    if result.drafted:
        taken = f"{result.accepted} of {result.drafted} guesses taken"
        rates.append(f"{taken}, {result.tokens_per_call:.2f} tokens a call")
    return ", ".join([counts, *rates, f"ended by {result.finish_reason}"])


def shown(text: str) -> str:
    """A model's text: exact for a file or a pipe, without control characters on a terminal."""
    return printable(text) if sys.stdout.isatty() else text
