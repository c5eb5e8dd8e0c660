"""`Session`: generate text with a bundle, from prompt to streamed answer.

`Session` is what a reader uses (`generate`, `stream`) and what tests and benchmarks take apart
(`prefill`, `decode`, `logits`). It knows tokens and text, but no PyTorch model: everything it needs
stands in the bundle's manifest. The calls on the device are in `ane_book.runtime.model_runner`.

Taught in the chapters "What a token costs" and "The cache".
Letters: T tokens of a call, S slots of the cache (the context), V vocabulary.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Unpack

from ane_book.bundle import Bundle, opened
from ane_book.errors import InvalidInput, PromptTooLong
from ane_book.options import Sampling, SamplingOptions, checked
from ane_book.runtime.adapters import Adapter, read_adapter
from ane_book.runtime.answer import Answer, Clock, Result, Stream, TextStream, alone, common_prefix
from ane_book.runtime.backends import Backend, choose_backend
from ane_book.runtime.bundle_text import BundleText, check_ids, load_tokenizer
from ane_book.runtime.drafts import Drafter, choose_drafter, guesses
from ane_book.runtime.model_runner import ChunkOutput, ModelRunner
from ane_book.runtime.prompt_cache import PromptCache, collect, made_of, restored
from ane_book.runtime.prompt_cache_file import FileForm, check_form, read_cache, write_cache
from ane_book.runtime.sampling import Sampler
from ane_book.text.chat import Messages
from ane_book.text.process import TextProcess
import numpy as np

if TYPE_CHECKING:
    from ane_book.runtime.grammar import GrammarTokens
    from typing_extensions import TypeIs

TokenIds = Sequence[int] | np.ndarray  # (n,), of whole numbers


class Session(BundleText):
    """Generates text with a bundle, and keeps the cache of one conversation.

    bundle: a `Bundle`, or its folder.
    precision: "fp16" as the packages declare; the executor alone has "fp32", the reference, and
        "ane" (experimental: `MLProgram`).
    backend: "mil", "coreml", a `Backend` of your own, or None for Core ML where it can run and the
    executor elsewhere. A backend object brings its own precision.
    force: open a bundle that failed parity by its evidence.json, too.
    runner: what runs the programs, if not this process (`ane_serve.cluster`).

    calls: how often each program was called so far, by its package. tiers: how often the layers
    were called in each tier of the cache, by its slots.

    One call or stream at a time: a second one, of another thread or between two pieces of a stream,
    raises SessionBusy. Sessions of one bundle may run at the same time, each in its own thread.
    Tokenizer and chat template run in a process of their own, with limits of time and memory.

    Raises InvalidBundle, InvalidPackage, InvalidInput or BackendUnavailable.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        precision: str = "fp16",
        backend: Backend | str | None = None,
        force: bool = False,
        runner: ModelRunner | None = None,
    ):
        self.bundle = opened(bundle, "text-generation", force)
        self._tokenizer = TextProcess()  # it starts while the packages are opened
        self.backend = backend = choose_backend(backend, precision)
        self._runner = ModelRunner(self.bundle, backend) if runner is None else runner
        self.calls, self.tiers = self._runner.calls, self._runner.tiers
        self._text = self.bundle.manifest.tokenizer
        load_tokenizer(self._tokenizer, self._tokenizer_file)
        self._tokens: list[int] = []  # what the cache holds
        self._adapter = "none"  # the fingerprint of the one in use
        self._cache = Lock()  # held by the call that changes these

    @property
    def context(self) -> int:
        """S: how many tokens prompt and answer may have together."""
        return self._runner.context

    @property
    def position(self) -> int:
        """How many tokens the cache holds."""
        return len(self._tokens)

    @property
    def block(self) -> int:
        """K: how many tokens a call to decode takes, guessed ones included; 1 without `verify`."""
        return self._runner.block

    def reset(self) -> None:
        """Forget everything."""
        with alone(self._cache):
            self._clear()

    def _clear(self) -> None:
        self._tokens.clear()  # first: an interruption leaves no token whose slots are gone
        self._runner.clear()

    def use(self, adapter: str | Path | Adapter | None) -> None:
        """Answer with a LoRA adapter, or with None as the model is; forgets everything.

        adapter: a folder as PEFT writes it, or what `read_adapter` made of one; raises what that
        raises. Nothing is converted or compiled.
        """
        own = None if adapter is None else read_adapter(adapter, self.bundle)
        with alone(self._cache):
            self._runner.use(own)
            self._adapter = own.fingerprint if own else "none"
            self._clear()

    def rewind(self, position: int) -> None:
        """Forget all but the first `position` tokens: later slots stay masked until overwritten."""
        if not 0 <= position <= self.position:
            raise InvalidInput(f"cannot rewind to {position}: {self.position} tokens are held")
        with alone(self._cache):
            del self._tokens[position:]

    def prompt_cache(self) -> PromptCache:
        """A copy of what the session holds; raises InvalidInput where that is nothing."""
        made = self._made_of
        if not self._tokens:
            raise InvalidInput("the session holds no tokens, so there is no cache to take")
        with alone(self._cache):
            for _ in self._forward([]):
                pass  # after a rewind some of it may have to be made again
            kept = self._runner.read(self.position)
            return collect(self.bundle.manifest, kept, self._tokens, made)

    def continue_from(self, cache: PromptCache) -> None:
        """Hold what another session of the same model held; then generate(prompt, reuse_cache=True)
        reads only what the cache lacks; without reuse_cache all is read again. Raises InvalidInput
        for a cache of another model, before anything changes.
        """
        n = cache.position
        with alone(self._cache):
            kept = restored(cache, self.bundle.manifest, self._made_of)
            self._clear()
            cut = any("tail" in own.arrays or n > (own.window or n) for own in cache.layers)
            self._runner.write(kept, n, whole=not cut)
            self._tokens += cache.tokens

    def save_cache(self, path: str | Path, form: FileForm = "mlx", messages: Sequence = ()) -> None:
        """Write what the session holds to a file that its user alone can read, whole or not at all.

        form: "mlx" for mlx-lm from 0.32 on, or "mlx-swift" for mlx-swift-lm; both open only names
        such as `x.safetensors`. messages: what `load_cache` returns. Raises as `prompt_cache`,
        InvalidInput for a model that those compute in another way or a place that cannot be written
        to, and OutOfSpace.
        """
        check_form(self.bundle.manifest, form)
        write_cache(Path(path), replace(self.prompt_cache(), messages=[*messages]), form)

    def load_cache(self, path: str | Path, tokens: TokenIds | None = None) -> Messages:
        """Hold what a file by `save_cache`, mlx-lm or mlx-swift-lm holds, for generate(prompt,
        reuse_cache=True), as in `continue_from`; returns the messages that it was saved with.

        tokens: for a file that does not say them. Raises InvalidInput for one that is damaged or of
        another model.
        """
        given = None if tokens is None else self._valid(tokens)
        try:
            cache = read_cache(Path(path), self.bundle.manifest, self._made_of, given)
            self.continue_from(cache)
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None
        return cache.messages

    @property
    def _made_of(self) -> dict[str, str]:
        if type(self._runner) is not ModelRunner:
            raise InvalidInput("a cluster's caches are on its machines; use a session on one")
        return made_of(self.bundle.manifest, self.backend.dtype, self._adapter)

    def prefill(self, token_ids: TokenIds) -> np.ndarray | int:
        """Append tokens to the cache, a chunk at a time.

        Returns the logits (V,) float32 after the last one; a bundle converted with argmax_output
        returns the likeliest next token's id instead.
        """
        with alone(self._cache):
            for call in self._forward(self._checked(token_ids)):
                last = call  # earlier ones are let go
            return self._after(last)[-1]

    def _after(self, call: ChunkOutput) -> np.ndarray | list[int]:
        """Run the head after the last token of a call; for `verify`, after each new one."""
        if call.function == "verify":
            return self._runner.head(call.hidden)[call.new]
        return self._runner.head(call.hidden[..., call.new.stop - 1 : call.new.stop])

    def decode(self, token_id: int) -> np.ndarray | int:
        """Append one token. Returns logits (V,) float32, or a token id, as `prefill` does."""
        return self.prefill((token_id,))

    def logits(self, token_ids: TokenIds) -> np.ndarray:
        """Append tokens; returns the logits (n, V) float32 after each (teacher forcing)."""
        if self._runner.argmax_output:
            raise InvalidInput(
                f"{self.bundle.path}: converted with argmax_output, it returns tokens, not logits"
            )
        rows = np.empty((len(token_ids), self._runner.vocabulary), dtype=np.float32)
        done = 0
        with alone(self._cache):
            for call in self._forward(self._checked(token_ids)):
                count = call.new.stop - call.new.start
                rows[done : done + count] = self._runner.head(call.hidden)[call.new]
                done += count
        return rows

    def _forward(self, ids: list[int], guesses: Sequence[int] = ()) -> Iterator[ChunkOutput]:
        """Run tokens through the layers, a chunk a call, and hold them.

        A single token may be followed by guesses, as many as its call takes. They are not held:
        that is for whoever finds that they came true.
        """
        calls = [*self._runner.chunks(self.position, len(ids), len(guesses))]
        start = calls[0].first if calls else self.position  # it may be before `position`
        held = [*self._tokens[start:], *ids]
        tokens = np.array([*held, *guesses])
        given = [(c.function, tokens[c.first - start : c.stop - start], c.first) for c in calls]
        for call, hidden in zip(calls, self._runner.passes(given), strict=True):
            position = self.position
            if call.stop > position:  # else all of them are held: a memory is made again
                new = slice(position - call.first, call.stop - call.first)
                yield ChunkOutput(call.function, hidden, new)
                self._tokens += held[position - start : call.stop - start]

    def _valid(self, token_ids: TokenIds) -> list[int]:
        """Token ids as a list; raises InvalidInput for those outside the vocabulary."""
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise InvalidInput("token ids must be a list of at least one whole number")
        check_ids(ids, self._runner.vocabulary)
        return ids.tolist()

    def _checked(self, token_ids: TokenIds) -> list[int]:
        ids = self._valid(token_ids)
        if self.position + len(ids) > self.context:
            raise self._too_long(f"{len(ids)} more tokens after {self.position} exceed")
        return ids

    def _too_long(self, what: str) -> PromptTooLong:
        return PromptTooLong(
            f"{what} the context of {self.context} tokens; shorten it, or convert with a longer "
            "context (`ane-book convert --context`)"
        )

    def generate(
        self,
        prompt: str | Messages | TokenIds,
        draft: Drafter | str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Result:
        """Answer a prompt or a conversation; arguments and errors are those of `stream`."""
        with closing(self.stream(prompt, draft, **sampling)) as stream:
            return stream.finish()

    def stream(
        self,
        prompt: str | Messages | TokenIds,
        draft: Drafter | str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Stream:
        """Answer a prompt, a conversation or token ids as they are, piece by piece.

        draft: guesses tokens, which `verify` checks, several in a call: "lookup" in prompt and
        answer, or a `Drafter` of your own. It changes the speed, but no token. sampling: fields of
        `ane_book.options.Sampling`. With reuse_cache results may round differently in fp16.

        Raises PromptTooLong or InvalidInput at once, before any token is run.
        """
        how = checked(Sampling, dict(sampling))
        if self._runner.argmax_output and how.needs_logits:
            raise InvalidInput(
                f"{self.bundle.path}: converted with argmax_output, it returns the likeliest token "
                "only; use temperature 0 without logprobs, bias, penalties and forms, or convert "
                "without argmax_output"
            )
        drafter = None if draft is None else choose_drafter(draft, self)
        ids = self._given(prompt, how)
        sampler = self._sampler(how, ids)
        most = min(how.max_tokens, self._room(ids))
        shown = {self.token_id(token): token for token in how.shown}
        text = TextStream(self._tokenizer, tuple(filter(None, how.stop)), shown)
        answer = Answer(text, most, self._text.eos_token_ids, how.stop_repeat)
        draw = int if self._runner.argmax_output else sampler
        return Stream(self._answer(ids, answer, draw, drafter, how.reuse_cache), sampler.drawn)

    def _sampler(self, how: Sampling, ids: list[int]) -> Sampler:
        known = range(self._runner.vocabulary)
        if wrong := [token for token in how.logit_bias if token not in known]:
            raise InvalidInput(
                f"logit_bias: token id {wrong[0]} is outside the vocabulary of {len(known)}"
            )
        end = self.thought_tags[1] if self.thought_tags and self.thinks(ids) else ""
        return Sampler(how, how.form and self._grammar_tokens.mask(*how.form, end))

    @cached_property
    def _grammar_tokens(self) -> "GrammarTokens":
        from ane_book.runtime.grammar import GrammarTokens

        ends = self._text.eos_token_ids
        return GrammarTokens(self._tokenizer_file, self._runner.vocabulary, ends)

    def _given(self, prompt: str | Messages | TokenIds, how: Sampling) -> list[int]:
        """The token ids of a prompt, which may be token ids already."""
        if not _are_ids(prompt):
            return self.encode(prompt, how.system, effort=how.reasoning_effort)
        told = {"system prompt": how.system, "reasoning_effort": how.reasoning_effort}
        for name, value in told.items():
            if value is not None:
                raise InvalidInput(f"token ids go as they are; a {name} has no place in them")
        return self._valid(prompt)

    def _room(self, ids: list[int]) -> int:
        """How many tokens the context leaves for an answer to this prompt."""
        if not ids:
            raise InvalidInput("the prompt is empty; give at least one character")
        room = self.context - len(ids)
        if room < 1:
            what = f"the prompt has {len(ids)} tokens; with at least one for the answer it must fit"
            raise self._too_long(what)
        return room

    def _answer(
        self, ids: list[int], answer: Answer, draw: Callable, drafter: Drafter | None, reuse: bool
    ) -> Generator[str, None, Result]:
        """Yield the pieces of an answer as they become final, and "" after each call."""
        with alone(self._cache):
            if reuse:  # all but the tokens that these begin with
                del self._tokens[common_prefix(self._tokens, ids[:-1]) :]
            else:
                self._clear()
            calls = drafted = accepted = 0

            # Prefill: those tokens of the prompt that the cache does not hold, a chunk a call.
            fresh, clock = ids[self.position :], Clock()
            for call in self._forward(fresh):
                last = call
                with clock.stopped():
                    yield ""
            token = draw(self._after(last)[-1])
            prefill_tps = clock.rate(len(fresh))
            yield answer.add(token)

            # Decode: the last token, and after it guesses, which the same call checks.
            clock = Clock()
            while not answer.reason:
                guessed: list[int] = []
                if drafter is not None:  # as many as the next call and the answer have room for
                    room = self._runner.step(self.position, answer.left).stop - self.position - 1
                    guessed = guesses(drafter, ids + answer.tokens, room, self._runner.vocabulary)
                for call in self._forward([token], guessed):
                    last = call
                    with clock.stopped():
                        yield ""
                calls, drafted = calls + 1, drafted + len(guessed)
                outputs = self._after(last)[-1 - len(guessed) :]
                # One draw a token, guessed or not: so guesses change no token and no distribution.
                for output, guess in zip(outputs, [*guessed, None], strict=True):
                    token = draw(output)
                    accepted += token == guess
                    with clock.stopped():
                        yield answer.add(token)
                    if token != guess or answer.reason:
                        break
                    self._tokens.append(token)  # whose keys and values the call has cached
            decode_tps = clock.rate(len(answer.tokens) - 1)
            yield answer.finish()
            return Result(
                text=answer.text,
                token_ids=answer.tokens,
                prompt_tokens=len(ids),
                prefill_tps=prefill_tps,
                decode_tps=decode_tps,
                finish_reason=answer.reason,
                calls=calls,
                drafted=drafted,
                accepted=accepted,
                stop=answer.stop,
            )


def _are_ids(prompt: str | Messages | TokenIds) -> "TypeIs[TokenIds]":
    """Whether a prompt is token ids, one or more."""
    several = isinstance(prompt, Sequence | np.ndarray) and len(prompt)
    return bool(several) and isinstance(prompt[0], int | np.integer)
