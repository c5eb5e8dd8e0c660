"""Bundles whose tokenizers have more tokens: of control, and of text."""

from collections.abc import Callable
import json
from pathlib import Path

from _plant import copied
from ane_book.runtime import Session
from tokenizers import AddedToken, Tokenizer

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|turn|>{{ m.content }}"
    "{% for call in m.tool_calls %}<call>{{ call.function | tojson }}{% endfor %}{% endfor %}"
)
END, TURN, CALL = "<|end|>", "<|turn|>", "<call>"
CONTROL = {256, 257, 258}  # their ids
PLAIN = ["\n\n", "  ", "<b>"]


def added(text: str, special: bool = False, normalized: bool = False) -> AddedToken:
    return AddedToken(text, special=special, normalized=normalized)


ADDED = [added(TURN, special=True), added(CALL), *map(added, PLAIN)]


def opener(tiny_bundle: Callable, folder: Path) -> Callable[..., Session]:
    """Open a copy with more tokens, ids from 257 on, and a normalizer."""
    made = tiny_bundle("llama", (("head_dim", 64), ("vocab_size", 263)), head_rows=100)[1]

    def opened(tokens=ADDED, normalizer=None, template: str | None = TEMPLATE) -> Session:
        copy = copied(made, folder)
        file, manifest = copy / "tokenizer.json", copy / "manifest.json"
        tokenizer = Tokenizer.from_file(str(file))
        if normalizer:
            tokenizer.normalizer = normalizer
        for token in tokens:
            tokenizer.add_tokens([token])
        tokenizer.save(str(file))
        facts = json.loads(manifest.read_text())
        facts["tokenizer"]["chat_template"] = template
        facts["files"]["tokenizer.json"] = file.stat().st_size
        manifest.write_text(json.dumps(facts))
        return Session(copy)

    return opened


def spelled(session: Session, text: str) -> list[int]:
    """The tokens of the letters, of which this tokenizer makes no longer ones."""
    return [token for letter in text for token in session.tokens(letter)]
