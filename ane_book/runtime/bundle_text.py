"""`BundleText`: what a session knows of text: prompts to token ids, and tokens to words."""

from collections.abc import Sequence
from functools import cached_property
import json
from pathlib import Path
from typing import Any

from ane_book.bundle import Bundle, manifest
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.text.chat import Messages, as_messages, thought_tags
from ane_book.text.process import TextProcess, check_text
import numpy as np
from tokenizers import Tokenizer

CUT = "\U0010fffd"  # the last character for private use; a text that has it loses it


def described(session: Any) -> str:
    """What a session, an embedder or a tagger is, as `print` shows it."""
    known = session.bundle.manifest
    functions = ", ".join(f"{name} {T}" for name, T in known.functions.items())
    return (
        f"<{type(session).__name__} {known.name}: context {known.context}, tokens of a call: "
        f"{functions}; backend {session.backend.name}, {session.bundle.path}>"
    )


class BundleText:
    """A bundle's tokenizer and chat template; a session sets the three."""

    bundle: Bundle
    _tokenizer: TextProcess
    _text: manifest.Tokenizer
    __repr__ = described

    @property
    def _tokenizer_file(self) -> Path:
        return self.bundle.path / self._text.file

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself, in this process and without the limits of `encode`."""
        tokenizer = Tokenizer.from_file(str(self._tokenizer_file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def encode(
        self,
        prompt: str | Messages,
        system: str | None = None,
        plain: bool = False,
        tools: Sequence[dict] | None = None,
        effort: str | None = None,
    ) -> list[int]:
        """The prompt's token ids: through the chat template, or as plain text without one.

        plain: leave the template out, to continue a text. tools: for the template, as OpenAI's
        clients give them (`ane_serve.tools.tools`). effort: how much the model is to think, where
        the template has a switch for it (`options.Sampling.reasoning_effort`). The model's control
        tokens in messages are read as `transformers` reads them, unless `literal` made them text.
        """
        text = self._text
        if text.chat_template is not None and not plain:
            messages = as_messages(prompt, system)
            rendered = self._tokenizer.render(
                text.chat_template, messages, text.bos_token, text.eos_token, tools=tools,
                effort=effort,
            )  # fmt: skip
            parts = rendered.split(CUT)
            return [token for part in parts for token in self._ids(part, special=False)]
        if not isinstance(prompt, str) or system is not None:
            raise InvalidInput(
                f"{self.bundle.manifest.name} has no chat template: give one plain text, "
                "without messages or system prompt"
            )
        return self._ids(prompt, special=True)

    def literal(self, value: Any) -> Any:
        """A JSON value for `encode`, in whose texts a control token is the text that it is."""
        if self._text.chat_template is None:
            return value
        texts = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        check_text(texts, "the prompt")
        return self._tokenizer.literal(value, [*self.control.values()], CUT)

    @cached_property
    def thought_tags(self) -> tuple[str, str] | None:
        """The tags around this model's thought, where its chat template has some."""
        return thought_tags(self._text.chat_template or "")

    def thinks(self, token_ids: Sequence[int]) -> bool:
        """Whether an answer to these tokens begins within a thought, as the template opens it."""
        if self.thought_tags is None:
            return False
        begin, _ = self.thought_tags
        last = token_ids[-len(begin) - 4 :]
        special = {token: text for text, token in self.special_tokens.items()}
        words = [special.get(id, word) for id, word in zip(last, self.words(last), strict=True)]
        return "".join(words).rstrip().endswith(begin)

    @cached_property
    def control(self) -> dict[str, int]:
        """The tokens that a stranger's text may not become, by their text: special ones, those
        that end an answer and those that the template writes. Other added tokens, such as runs of
        spaces, are text; one of a single character, as a line's end, marks nothing."""
        added = json.loads(self._tokenizer_file.read_bytes()).get("added_tokens", [])
        ends, template = self._text.eos_token_ids, self._text.chat_template or ""
        return {
            token["content"]: token["id"]
            for token in added
            if len(token["content"].strip()) > 1
            and (token.get("special") or token["id"] in ends or token["content"] in template)
        }

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The tokens that give no text when an answer is decoded: their ids, by their text."""
        added = json.loads(self._tokenizer_file.read_bytes()).get("added_tokens", [])
        return {token["content"]: token["id"] for token in added if token.get("special")}

    def token_id(self, token: str) -> int:
        """The id of a token, by its text; raises InvalidInput where there is none."""
        if (found := self._tokenizer.token_to_id(token)) is None:
            raise InvalidInput(f"{self.bundle.manifest.name} has no token {token!r:.80}")
        return found

    def tokens(self, text: str) -> list[int]:
        """The token ids of a text by itself, without template and special tokens."""
        return self._ids(text, special=False)

    def words(self, token_ids: Sequence[int]) -> list[str]:
        """What each token adds to a text; U+FFFD for a part of a character."""
        return [said.decode(errors="replace") for said in self.token_bytes(token_ids)]

    def token_bytes(self, token_ids: Sequence[int], first: bool = False) -> list[bytes]:
        """What each token adds to a text, or is at its beginning (first), as UTF-8, of which some
        tokens are a part of a character; special tokens add nothing."""
        return self._tokenizer.token_bytes(list(token_ids), first)

    def _ids(self, text: str, special: bool) -> list[int]:
        check_text(text, "the prompt")
        return self._tokenizer.encode(text, special)


def check_ids(ids: np.ndarray, vocabulary: int) -> None:
    """Raise InvalidInput for token ids outside the vocabulary."""
    wrong = ids[(ids < 0) | (ids >= vocabulary)]
    if wrong.size:
        raise InvalidInput(f"token id {wrong[0]} is outside the vocabulary of {vocabulary}")


def load_tokenizer(words: TextProcess, file: Path) -> None:
    """Load a bundle's tokenizer into its process; raises InvalidBundle."""
    try:
        words.load(file)
    except InvalidInput as error:
        raise InvalidBundle(f"{file}: {error}; convert the model again") from None
