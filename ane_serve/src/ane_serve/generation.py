"""Serve one request after the other with a session, and keep its cache between them.

The next prompt may begin like the last one: with the system prompt of an application, or the turns
of a conversation. Those tokens stay in the cache, as far as whole prefill calls go. So the calls
that are left are the same as without a cache, and the answer is the same to the last bit, whoever
was served before. Tokens that were decoded are run again in the next turn, T a call.

With `Slots` a prompt goes on from earlier ones as well: after its last whole call the cache is
copied, and put away when the answer has been given.

Letters: T tokens of a prefill call.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from ane_book import __version__
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from ane_book.runtime.adapters import Adapter
from ane_book.runtime.answer import Result, Stream, common_prefix
from ane_book.runtime.bundle_text import CUT
from ane_book.text.chat import Messages
from ane_serve.kept import Arrays, KeptSession
from ane_serve.markers import kept_apart
from ane_serve.slots import Slots, Whose, whose
from ane_serve.splitting import Part, Splitting
from ane_serve.tools.calls import CallPart
from ane_serve.tools.loose import loosened
from ane_serve.tools.tools import Calling, cut_call, tool_form


@dataclass(frozen=True)
class Ask:
    """Prompts, of which each gets n answers.

    prompts: texts, conversations, or token ids. system: of a text. plain: no chat template.
    sampling: fields of `options.Sampling`, but for the seed, of which the i-th answer has seed + i.
    effort: how much the model is to think. lenient: what this model cannot be held to of that, and
    of the schemas of tools, is left out.
    tools, choice: what the answers may call, and whether they have to. parts: split the answers
    into thoughts, text and calls (`ane_serve.splitting`). key: the name of the API key that asks.
    """

    prompts: Sequence[str | Messages | list[int]]
    sampling: dict
    n: int = 1
    seed: int | None = None
    system: str | None = None
    plain: bool = False
    effort: str | None = None
    lenient: bool = False
    tools: Sequence[dict] = ()
    choice: Calling = field(default_factory=Calling)
    parts: bool = False
    key: str | None = None


@dataclass(frozen=True)
class Started:
    """All prompts can be answered; they have so many tokens together."""

    prompt_tokens: int


@dataclass(frozen=True)
class Token:
    """A token: what it adds to the answer, as UTF-8, of which it may be a part of a character, the
    logarithm of its probability, and the likeliest ones'."""

    said: bytes
    logprob: float
    likeliest: list[tuple[bytes, float]]


@dataclass(frozen=True)
class TextPiece:
    """Text of an answer, and its tokens with log probabilities, where those were asked for."""

    index: int
    text: str
    tokens: Sequence[Token] = ()
    part: Part = "content"


@dataclass(frozen=True)
class CallPiece:
    """A part of a call of a tool, and its tokens as of a text."""

    index: int
    call: CallPart
    tokens: Sequence[Token] = ()


@dataclass(frozen=True)
class Finished:
    """An answer is whole; the cache had the first `cached` tokens of its prompt.

    tokens: those after the last piece, which gave no text. calls: of tools, {"name": str,
    "arguments": JSON text} each. called: whether there are some, and the last one is whole.
    """

    index: int
    result: Result
    cached: int
    tokens: Sequence[Token] = ()
    calls: Sequence[dict] = ()
    called: bool = False


class ServedSession:
    """A session that answers one request at a time.

    Where a bundle has `verify`, tokens are guessed, which changes none (`ane_book.runtime.drafts`).
    """

    def __init__(self, session: Session):
        self.session = session
        self.draft = "lookup" if session.block > 1 else None
        manifest = session.bundle.manifest
        self._width = manifest.functions[manifest.reading]
        self._asked: list[int] = []  # the last prompt
        self._form = tool_form(manifest.tokenizer.chat_template or "")
        self._adapter: Adapter | None = None
        self._key: str | None = None  # whose the last prompt was
        self._seal = ""
        self._slots: Slots | None = None
        self._takes = session if isinstance(session, KeptSession) else None
        self._taken: tuple[Whose, list[int], Arrays] | None = None

    def ids(self, ask: Ask, prompt: str | Messages | list[int]) -> list[int]:
        """A prompt's token ids."""
        if isinstance(prompt, list) and isinstance(prompt[0], int):
            return prompt
        ask = self._heeded(ask)
        literal = (lambda value: value) if ask.plain else self.session.literal
        read = literal(list(ask.tools)) if ask.tools and self._form.read else None
        if isinstance(prompt, str):
            told = literal(prompt)
        else:
            told = self._form.messages(prompt, ask.tools, literal)
        try:
            ids = self._encoded(ask, told, literal(ask.system), read)
        except InvalidInput as error:
            cut = None if isinstance(prompt, str) else cut_call(prompt)
            if cut is None:
                raise
            raise InvalidInput(
                f"{cut}: its arguments are no JSON object, which this model may not take; make "
                f"them whole, or leave the call and its result out ({error})"
            ) from None
        if not ids:
            raise InvalidInput("the prompt is empty; give at least one character")
        return ids

    def _heeded(self, ask: Ask) -> Ask:
        """A lenient request without an effort that this model's template has no switch for."""
        if ask.lenient and ask.effort not in (None, "none"):
            try:
                self.session.encode("Hi", effort=ask.effort)
            except InvalidInput:
                return replace(ask, effort=None)
        return ask

    def _encoded(self, ask: Ask, *told: Any) -> list[int]:
        """The token ids of a prompt, a system prompt and tools. Where their texts become other
        control tokens beside what the template writes than by themselves, they are kept apart."""
        session = self.session

        def encode(prompt: Any, system: str | None, tools: list[dict] | None) -> list[int]:
            return session.encode(prompt, system, ask.plain, tools, ask.effort)

        ids, control = encode(*told), session.control
        apart = [*told] if ask.plain else kept_apart(told, tuple(control), CUT)
        if [*told] == apart or session.bundle.manifest.tokenizer.chat_template is None:
            return ids
        alone, markers = encode(*apart), {*control.values()}
        equal = [token for token in ids if token in markers] == [t for t in alone if t in markers]
        return ids if equal else alone

    def sampling(self, ask: Ask, ids: list[int]) -> dict:
        """The fields of `options.Sampling` for an answer to these tokens, with the form that calls
        of tools have to keep, and the special tokens between its parts."""
        if not ask.parts:
            return ask.sampling
        known, tags = self.session.special_tokens, self.session.thought_tags
        special = {tag: known[tag] for tag in tags or () if tag in known}
        if not ask.tools:
            return ask.sampling | {"shown": tuple(special)}
        special |= self._form.special(known)
        first = None if self.session.thinks(ids) else tags  # the prompt may have opened a thought
        tools = [*map(loosened, ask.tools)] if ask.lenient else ask.tools
        grammar = self._form.grammar(tools, ask.choice, special, first)
        return ask.sampling | {"grammar": grammar, "shown": tuple(special)}

    def splitting(self, ask: Ask, ids: list[int]) -> Splitting:
        """Splits an answer to these tokens into its parts."""
        tags = self.session.thought_tags if ask.parts else None
        begun = tags is not None and self.session.thinks(ids)
        return Splitting(self._form, ask.tools, ask.choice.must, tags, begun)

    def use(self, adapter: Adapter | None, seal: str = "", slots: Slots | None = None) -> None:
        """Answer with this adapter; nothing is kept of what another one, or none, has computed.

        seal: of model and adapter. slots: where caches are put away, and found again.
        """
        if adapter is not self._adapter:
            self._asked = []
            self.session.use(adapter)
            self._adapter = adapter
        self._seal, self._slots = seal, slots

    def keep(self, ids: list[int], key: str | None = None) -> int:
        """Hold what an answer to these tokens can use, and nothing else; returns how many tokens.

        key: the name of the API key that asks, which goes on from nothing that another has asked.
        """
        self.put_away()
        if key != self._key:
            self._asked, self._key = [], key
        held = self._asked[: self.session.position]
        kept = common_prefix(held, ids[:-1]) // self._width * self._width
        session, slots = self._takes, self._slots
        if session is not None and slots is not None:
            found = slots.find(self._whose, ids[:-1], kept, self._width, session.goes_back)
            if found is not None:
                session.give(found.arrays, found.tokens)
                kept = found.usable
        self.session.rewind(kept)
        self._asked = ids
        return kept

    def take(self) -> None:
        """Copy the cache once it has the whole calls of the prompt and no more, unless slots have
        it."""
        session, slots = self._takes, self._slots
        count = (len(self._asked) - 1) // self._width * self._width
        if session is None or slots is None or not count or session.position != count:
            return
        own, tokens = self._whose, self._asked[:count]
        if not slots.has(own, tokens, session.goes_back):
            self._taken = own, tokens, session.take()

    def put_away(self) -> None:
        """Keep the copy that was taken of the last cache, in memory and on disk."""
        if self._taken is not None and self._slots is not None:
            self._slots.put(*self._taken)
        self._taken = None

    @property
    def _whose(self) -> Whose:
        backend = self.session.backend
        precision = f"{backend.dtype} {getattr(backend, 'precision', '')}"
        return whose(self._key, self._seal, backend.name, precision, __version__)


def answers(
    served: ServedSession, ask: Ask
) -> Generator[Started | TextPiece | CallPiece | Finished | None, None, None]:
    """Answer a request step by step; None is a step that gave no text."""
    session = served.session
    prompts = [served.ids(ask, prompt) for prompt in ask.prompts]
    for ids in prompts:  # runs nothing, but refuses a prompt that does not fit
        session.stream(ids, reuse_cache=True, **served.sampling(ask, ids))
    yield Started(sum(map(len, prompts)))
    for i, ids in enumerate(prompts):
        for j in range(ask.n):
            index, seed = i * ask.n + j, ask.seed if ask.seed is None else ask.seed + j
            cached = served.keep(ids, ask.key)
            how = {"seed": seed, "draft": served.draft, **served.sampling(ask, ids)}
            stream = session.stream(ids, reuse_cache=True, **how)
            splitting = served.splitting(ask, ids)
            drawn = _Drawn(session, stream, how.get("shown", ()))
            with closing(stream):
                served.take()
                for text in stream.steps():
                    served.take()
                    pieces = list(splitting.add(text)) if text else []
                    for piece in pieces:
                        yield _piece(index, piece, drawn.new())
                    if not pieces:
                        yield None
            result = stream.finish()
            for piece in splitting.finish():
                yield _piece(index, piece, drawn.new())
            calls = splitting.calls
            whole = bool(calls) and splitting.whole
            yield Finished(index, result, cached, drawn.new(), calls, whole)


class _Drawn:
    """The tokens of an answer with log probabilities, if those were asked for.

    shown: the special tokens that the answer's text has.
    """

    def __init__(self, session: Session, stream: Stream, shown: Sequence[str]):
        self._session, self._stream, self._given = session, stream, 0
        self._shown = {session.token_id(token): token.encode() for token in shown}

    def new(self) -> list[Token]:
        """Those since the last call."""
        start, self._given = self._given, len(self._stream.drawn)
        return [self._token(place) for place in range(start, self._given)]

    def _token(self, place: int) -> Token:
        drawn = self._stream.drawn[place]
        ids = [drawn.token, *drawn.likeliest]
        special = self._session.special_tokens.values()
        first = all(each.token in special for each in self._stream.drawn[:place])
        said = self._session.token_bytes(ids, first)
        own, *others = (self._shown.get(i, known) for i, known in zip(ids, said, strict=True))
        return Token(own, drawn.logprob, [*zip(others, drawn.likeliest.values(), strict=True)])


def _piece(
    index: int, made: tuple[Part, str] | CallPart, drawn: Sequence[Token]
) -> "TextPiece | CallPiece":
    if isinstance(made, CallPart):
        return CallPiece(index, made, drawn)
    part, text = made
    return TextPiece(index, text, drawn, part)
