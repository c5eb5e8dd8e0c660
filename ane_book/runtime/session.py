"""A bundle at work: prompt in, tokens out, text while it arrives.

`Session` is what a reader uses (`generate`, `stream`) and what tests and benchmarks take apart
(`prefill`, `decode`, `logits`). It knows tokens and text, but no PyTorch model: everything it needs
stands in the bundle's manifest. The calls on the device are in `ane_book.runtime.engine`.

Taught in the chapters "Modern inference" and "Stateful KV cache".
Letters: T tokens of a call, S slots of the cache (the context), V vocabulary.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from threading import Lock

from ane_book.bundle import Bundle, opened
from ane_book.errors import InvalidBundle, InvalidInput, PromptTooLong
from ane_book.options import Sampling, checked
from ane_book.runtime.answer import Clock, Result, Stream, alone
from ane_book.runtime.backends import Backend, choose_backend
from ane_book.runtime.engine import Engine
from ane_book.runtime.experts import Calls
from ane_book.runtime.sampling import Sampler
from ane_book.runtime.streaming import TextStream
from ane_book.text.chat import Messages, as_messages
from ane_book.text.process import TextProcess, check_text
import numpy as np
from tokenizers import Tokenizer

__all__ = ["Session", "load_tokenizer"]


class Session:
    """A conversation's worth of state over a bundle.

    bundle: a `Bundle`, or its folder.
    precision: "fp16" as the packages declare; the executor's are "fp32", the reference, and "ane"
        (experimental: `MLProgram`).
    backend: "mil", "coreml", a `Backend` of your own, or None for Core ML where it can run and the
    executor elsewhere. A backend object brings its own precision.
    force: open a bundle that failed parity by its evidence.json, too.

    One call or stream at a time: a second one, of another thread or between two pieces of a stream,
    raises SessionBusy. Sessions of one bundle may run at the same time, each in its own thread.
    Tokenizer and chat template are at work in a process of the session's own, within limits.

    Raises InvalidBundle, InvalidPackage, InvalidInput or BackendUnavailable.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        precision: str = "fp16",
        backend: Backend | str | None = None,
        force: bool = False,
    ):
        self.bundle = opened(bundle, "text-generation", force)
        self._words = TextProcess()  # it starts while the packages are opened
        self.backend = backend = choose_backend(backend, precision)
        self._engine = Engine(self.bundle, backend)
        self._text = self.bundle.manifest.tokenizer
        load_tokenizer(self._words, self._tokenizer_file)
        self._tokens: list[int] = []  # what the cache holds
        self._cache = Lock()  # of whoever changes these

    @property
    def _tokenizer_file(self) -> Path:
        return self.bundle.path / self._text.file

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer to take apart, in this process and without the limits of `encode`."""
        tokenizer = Tokenizer.from_file(str(self._tokenizer_file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    # Tokens and logits: what chapters, tests and benchmarks take apart.

    @property
    def context(self) -> int:
        """S: how many tokens prompt and answer may have together."""
        return self._engine.context

    @property
    def position(self) -> int:
        """How many tokens the cache holds."""
        return len(self._tokens)

    def reset(self) -> None:
        """Forget everything."""
        with alone(self._cache):
            self._clear()

    def _clear(self) -> None:
        self._engine.clear()
        self._tokens.clear()

    @property
    def calls(self) -> Calls:
        """How often each program was called since: see `ane_book.runtime.experts`."""
        return self._engine.calls

    @property
    def tiers(self) -> Counter[int]:
        """How often the layers were called with a cache of so many slots, for every tier."""
        return self._engine.tiers

    def rewind(self, position: int) -> None:
        """Forget all but the first `position` tokens: later slots stay masked until overwritten."""
        if not 0 <= position <= self.position:
            raise InvalidInput(f"cannot rewind to {position}: {self.position} tokens are held")
        with alone(self._cache):
            del self._tokens[position:]

    def prefill(self, token_ids: Sequence[int]) -> np.ndarray | int:
        """Append tokens to the cache, a chunk at a time.

        Returns the logits (V,) float32 after the last one; a bundle converted with argmax_output
        returns the likeliest next token's id instead.
        """
        with alone(self._cache):
            return self._append(token_ids)

    def _append(self, token_ids: Sequence[int]) -> np.ndarray | int:
        *_, call = self._forward(token_ids)
        return self._last(*call)

    def _last(self, function: str, hidden: np.ndarray, new: slice) -> np.ndarray | int:
        """What the head says after the last token of a call."""
        last = new.stop - 1
        if function != "verify":  # the only one whose tokens all go through a head of its own
            hidden, last = hidden[..., last : last + 1], 0  # (1, C, 1, 1)
        return self._engine.head(hidden)[last]

    def decode(self, token_id: int) -> np.ndarray | int:
        """Append one token. Returns logits (V,) float32, or a token id, as `prefill` does."""
        return self.prefill((token_id,))

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Append tokens; the logits (n, V) float32 after each of them (teacher forcing)."""
        if self._engine.argmax_output:
            raise InvalidInput(
                f"{self.bundle.path}: converted with argmax_output, it returns tokens, not logits"
            )
        rows = np.empty((len(token_ids), self._engine.vocabulary), dtype=np.float32)
        done = 0
        with alone(self._cache):
            for _, hidden, new in self._forward(token_ids):
                count = new.stop - new.start
                rows[done : done + count] = self._engine.head(hidden)[new]
                done += count
        return rows

    def _forward(self, token_ids: Sequence[int]) -> Iterator[tuple[str, np.ndarray, slice]]:
        """Run tokens through the shards: function, hidden (1, C, 1, T), and the columns of it that
        are new, of each call."""
        ids = self._checked(token_ids)
        tokens = np.concatenate([np.array(self._tokens, ids.dtype), ids])
        for function, first, stop in self._engine.chunks(self.position, len(ids)):
            hidden = self._engine.forward(function, tokens[first:stop], first)
            yield function, hidden, slice(self.position - first, stop - first)
            self._tokens.extend(tokens[self.position : stop].tolist())

    def _valid(self, token_ids: Sequence[int]) -> np.ndarray:
        """Token ids as an array, held to the vocabulary."""
        ids = np.asarray(token_ids)
        vocabulary = self._engine.vocabulary
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise InvalidInput("token ids must be a list of at least one whole number")
        if ids.min() < 0 or ids.max() >= vocabulary:
            wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
            raise InvalidInput(f"token id {wrong} is outside the vocabulary of {vocabulary}")
        return ids

    def _checked(self, token_ids: Sequence[int]) -> np.ndarray:
        ids = self._valid(token_ids)
        if self.position + ids.size > self.context:
            raise PromptTooLong(
                f"{ids.size} more tokens after {self.position} exceed the context of "
                f"{self.context} tokens; {self._longer()}"
            )
        return ids

    def _longer(self) -> str:
        return f"shorten it, or convert with a longer context (--context, now {self.context})"

    # Text: what readers use.

    def encode(
        self, prompt: str | Messages, system: str | None = None, plain: bool = False
    ) -> list[int]:
        """The prompt's token ids: through the chat template, or as plain text without one.

        plain: leave the template out, for a text to go on with.
        """
        text = self._text
        if text.chat_template is not None and not plain:
            messages = as_messages(prompt, system)
            tokens = {"bos_token": text.bos_token, "eos_token": text.eos_token}
            rendered = self._words.render(text.chat_template, messages, **tokens)
            return self._ids(rendered, special=False)
        if not isinstance(prompt, str) or system is not None:
            raise InvalidInput(
                f"{self.bundle.manifest.name} has no chat template: give one plain text, "
                "without messages or system prompt"
            )
        return self._ids(prompt, special=True)

    def _ids(self, text: str, special: bool) -> list[int]:
        check_text(text, "the prompt")
        return self._words.encode(text, special)

    def generate(self, prompt: str | Messages | Sequence[int], **sampling) -> Result:
        """Answer a prompt or a conversation; arguments and errors are those of `stream`."""
        stream = self.stream(prompt, **sampling)
        with closing(stream):
            for _ in stream:
                pass
        return stream.result

    def stream(self, prompt: str | Messages | Sequence[int], **sampling) -> Stream:
        """Answer a prompt, a conversation or token ids as they are, piece by piece.

        sampling: fields of `ane_book.options.Sampling` (max_tokens, temperature, top_k, top_p,
        seed, system, stop, reuse_cache). With reuse_cache chunks fall differently, so fp16 may
        round differently.

        Raises PromptTooLong or InvalidInput at once, before any token is run.
        """
        how = checked(Sampling, sampling)
        sampler = Sampler(how.temperature, how.top_k, how.top_p, how.seed)
        if self._engine.argmax_output and not sampler.greedy:
            raise InvalidInput(
                f"{self.bundle.path}: converted with argmax_output, it returns the likeliest token "
                "only; use temperature 0, or convert without argmax_output"
            )
        ids = self._given(prompt, how.system)
        most = min(how.max_tokens, self._room(ids))
        text = TextStream(self._words, tuple(filter(None, how.stop)))
        return Stream(self._answer(ids, most, sampler, text, how.reuse_cache))

    def _given(self, prompt: str | Messages | Sequence[int], system: str | None) -> list[int]:
        """The token ids of a prompt, which may be such."""
        if not (len(prompt) and isinstance(prompt[0], int | np.integer)):
            return self.encode(prompt, system)
        if system is not None:
            raise InvalidInput("token ids go as they are; a system prompt has no place in them")
        return self._valid(prompt).tolist()

    def _room(self, ids: list[int]) -> int:
        """How many tokens the context leaves for an answer to this prompt."""
        if not ids:
            raise InvalidInput("the prompt is empty; give at least one character")
        room = self.context - len(ids)
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens; with at least one for the answer it must fit "
                f"the context of {self.context} tokens; {self._longer()}"
            )
        return room

    def _answer(
        self, ids: list[int], most: int, sampler: Sampler, text: TextStream, reuse: bool
    ) -> Generator[str, None, Result]:
        with alone(self._cache):
            if reuse:
                del self._tokens[_common_prefix(self._tokens, ids[:-1]) :]
            else:
                self._clear()
            return (yield from self._pieces(ids, most, sampler, text))

    def _pieces(
        self, ids: list[int], most: int, sampler: Sampler, text: TextStream
    ) -> Generator[str, None, Result]:
        clock, generated, pieces = Clock(), [], []
        fresh, phase = ids[self.position :], "prefill"
        reason = "length"
        while True:
            token = yield from self._next(fresh, sampler, partial(clock.run, phase))
            generated.append(token)
            ended = token in self._text.eos_token_ids
            piece = text.finish() if ended else text.add(token)
            pieces.append(piece)
            yield piece
            if ended or text.stopped:
                reason = "stop"
                break
            if len(generated) == most:
                break
            fresh, phase = [token], "decode"
        rest = text.finish()
        pieces.append(rest)
        yield rest
        rates = clock.rate("prefill"), clock.rate("decode")
        return Result("".join(pieces), generated, len(ids), *rates, reason)

    def _next(
        self, token_ids: Sequence[int], sampler: Sampler, timed: Callable
    ) -> Generator[str, None, int]:
        """Append tokens, with an empty piece after each call; the token that comes after them."""
        calls = self._forward(token_ids)
        while (call := timed(partial(next, calls, None))) is not None:
            last = call
            yield ""
        return timed(lambda: self._drawn(sampler, *last), len(token_ids))

    def _drawn(self, sampler: Sampler, *call) -> int:
        """The token that comes after a call."""
        output = self._last(*call)
        return output if self._engine.argmax_output else sampler(output)


def load_tokenizer(words: TextProcess, file: Path) -> None:
    """Have the process take a bundle's tokenizer; raises InvalidBundle."""
    try:
        words.load(file)
    except InvalidInput as error:
        raise InvalidBundle(f"{file}: {error}; convert the model again") from None


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens two lists share."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
