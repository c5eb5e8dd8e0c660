"""Why a first load takes long: what somebody has measured or reported."""

from mlprogram.ane import claims

REASONS = {
    "it compiles": "first-load",
    "a language model": "first-load-language",
    "it does so again": "first-load-again",
    "on which cores": "compile-cores",
    "a chain of ops": "compile-chain",
    "one dear op": "conv-square",
    "asking for a plan": "plan-compiles",
}  # reason: claim


def long_loads() -> list[str]:
    """A line for each reason: its claim, and the evidence."""
    return [claims.find(name).note(why) for why, name in REASONS.items()]
