"""Hold the text side of a bundle together: chat template, tokenizer, stop tokens, logits.

A bundle can compute what its model computes and answer nonsense, because what turns text into ids
does not fit: a prompt that never says whose turn it is, an answer that never ends. Each finding has
a name and says what is wrong, where, and what to do. Template and tokenizer run in a process with
limits, as in the runtime. What the weights' own files say (`generation_config.json`) is only looked
at where the source is given, since a bundle has no copy of them.

Its findings are listed on the page "Every claim".
"""

from collections.abc import Iterable, Iterator
import json
from pathlib import Path

from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.text.process import TextProcess
from ane_book.weights import open_source
from mlprogram.ane.laws.rule import Remark

USER, ANSWER = "question 7391", "answer 8264"  # texts that no template has
NAMED = 3  # the most ids that a finding lists


def check_text_side(bundle: Bundle, source: str | Path | None = None) -> list[Remark]:
    """Look at a bundle's template, stop tokens, vocabulary and special tokens.

    source: the folder or file of weights that it was made of. Raises what `open_source` raises.
    """
    try:
        text = _TextSide(bundle)
    except (InvalidInput, ValueError) as error:
        file = bundle.manifest.tokenizer.file
        what = f"{file} does not load ({error}); convert the model again"
        return [_error("tokenizer-fails", what)]
    findings = list(text.vocabulary())
    if bundle.manifest.task == "text-generation":
        findings += [*text.template(), *text.stops(), *text.typed()]
    if source is not None:
        findings += text.against(Path(source))
    return findings


def _error(name: str, text: str) -> Remark:
    return Remark(name, "error", text)


def _warning(name: str, text: str) -> Remark:
    return Remark(name, "warning", text)


def _stop(name: str, what: str) -> Remark:
    return _error(name, f"{what}; correct eos_token_id in generation_config.json and convert again")


class _TextSide:
    """A bundle's tokenizer, loaded, and what its template makes of two conversations."""

    def __init__(self, bundle: Bundle):
        self._manifest, self._says = bundle.manifest, bundle.manifest.tokenizer
        self._process = TextProcess()
        file = bundle.path / self._says.file
        self._process.load(file)
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        added = tokenizer.get("added_tokens", [])
        self._special = {one["id"]: one["content"] for one in added if one["special"]}
        self._known = _vocabulary(tokenizer["model"]["vocab"])
        self._known |= {one["id"]: one["content"] for one in added}
        self._asked, self._answered, self._refusal = "", "", ""
        try:
            self._asked = self._render(USER)
            self._answered = self._render(USER, ANSWER)
        except InvalidInput as error:
            self._refusal = str(error)
        _, answer, after = self._answered.rpartition(ANSWER)  # the first special token behind it
        ids = self._ids(after) if answer else []
        self._turn = next((i for i in ids if i in self._special), None)

    def _render(self, user: str, answer: str | None = None) -> str:
        """A conversation as text; "" without a template. Raises InvalidInput where it refuses."""
        says, messages = self._says, [{"role": "user", "content": user}]
        if says.chat_template is None:
            return ""
        if answer is not None:
            messages.append({"role": "assistant", "content": answer})
        return self._process.render(says.chat_template, messages, says.bos_token, says.eos_token)

    def _ids(self, text: str) -> list[int]:
        return self._process.encode(text, special=False)

    def vocabulary(self) -> Iterator[Remark]:
        """Each token has a row of the embedding, and so a logit, and each logit a token."""
        known, rows = self._known, self._manifest.embedding.shape[0]
        if beyond := sorted(i for i in known if i >= rows):
            tokens = _few(f"{i} {known[i]!r}" for i in beyond)
            yield _error(
                "vocabulary-beyond-embedding",
                f"{len(beyond):,} tokens ({tokens}) of {self._says.file} have no row in the "
                f"embedding of {rows:,} rows, and no logit; take the tokenizer that belongs to the "
                "weights",
            )
        generates = self._manifest.task == "text-generation"
        if not generates or self._manifest.argmax_output:
            return
        if unnamed := sorted(set(range(rows)) - known.keys()):
            yield _warning(
                "logits-without-token",
                f"{len(unnamed):,} of {rows:,} logits have no token ({_few(unnamed)}), as the "
                "padding of a vocabulary has; the runtime shows no text for them, and a host that "
                "draws tokens may leave them out",
            )

    def template(self) -> Iterator[Remark]:
        """There is a template; it renders the user's text, and ends where the answer begins."""
        mend = "correct it in the model's files and convert again"
        if self._says.chat_template is None:
            yield _warning(
                "template-missing",
                "manifest.json has no chat template, so a prompt is continued as plain text; if "
                "this is a chat model, put its chat_template.jinja beside the weights and convert "
                "again",
            )
        elif self._refusal and not self._asked:
            yield _error(
                "template-fails",
                f"the template does not render one message of a user ({self._refusal}); {mend}",
            )
        elif USER not in self._asked:
            yield _error(
                "template-drops-user",
                f"what the template renders does not have the user's text in it; {mend}",
            )
        else:
            yield from self._prompt()

    def _prompt(self) -> Iterator[Remark]:
        """A prompt ends where an answer begins, and has the token of the beginning once."""
        before, answer, _ = self._answered.partition(ANSWER)
        asked = self._asked.rstrip()
        same = bool(answer) and before.startswith(asked)  # or it is laid out in another way
        between = before.removeprefix(asked) if same else ""
        if any(i in self._special for i in self._ids(between)):
            yield _error(
                "template-no-generation-prompt",
                f"a prompt ends before {between.strip()!r}, with which the template begins an "
                "answer, so that the model may go on as the user; have the template write it "
                "where `add_generation_prompt` is true",
            )
        token = self._says.bos_token or ""
        bos = self._process.token_to_id(token)
        if bos is None:
            return
        if self._ids(self._asked)[:2] == [bos, bos]:
            yield _error(
                "bos-twice",
                f"the template writes {token!r} twice at the beginning of a prompt; take one away",
            )
        elif self._process.encode(self._asked, special=True)[:2] == [bos, bos]:
            yield _warning(
                "bos-also-by-tokenizer",
                f"the template writes {token!r} and the tokenizer adds it too; this library and "
                "AneBook encode a rendered prompt without the tokenizer's own, and another host "
                "has to do so (`add_special_tokens=False`)",
            )

    def stops(self) -> Iterator[Remark]:
        """An answer ends: at eos_token, and at what the template writes after an answer."""
        stops, turn = self._says.eos_token_ids, self._turn
        if not stops:
            none = "manifest.json names no stop token, so no answer ends by itself"
            yield _stop("stop-none", none)
            return
        if lost := [i for i in stops if i not in self._known]:
            yield _stop("stop-unknown", f"no token has the ids {_few(lost)} of eos_token_ids")
        eos = self._process.token_to_id(self._says.eos_token or "")
        if eos is not None and eos not in stops:
            yield _stop("stop-eos", f"eos_token {self._says.eos_token!r} ({eos}) is no stop token")
        if turn is not None and turn not in {*stops, eos}:
            yield _stop(
                "stop-turn",
                f"the template ends an answer with {self._special[turn]!r} ({turn}), which is no "
                "stop token, so that answers run on",
            )

    def typed(self) -> Iterator[Remark]:
        """A user who types the end of a turn ends it."""
        turn = self._turn
        if turn is None:
            return
        token = self._special[turn]
        try:
            typed = self._render(f"{USER} {token} more")
        except InvalidInput:
            return  # the template refuses it
        if self._ids(typed).count(turn) > self._ids(self._asked).count(turn):
            yield _warning(
                "special-in-user-text",
                f"a user who types {token!r} ends the turn: the runtime encodes it as token "
                f"{turn}, as transformers does; an app that takes text of strangers removes the "
                f"special tokens ({_few(sorted(self._special.values()))}) from it",
            )

    def against(self, source: Path) -> Iterator[Remark]:
        """What the source's own files say of stop tokens."""
        declared = open_source(source).tokenizer().eos_token_ids
        if lost := [i for i in declared if i not in self._says.eos_token_ids]:
            yield _stop(
                "stop-of-source",
                f"{source} (generation_config.json, or the config) names the stop tokens "
                f"{_few(lost)}, which manifest.json lacks",
            )


def _vocabulary(vocab: dict[str, int] | list) -> dict[int, str]:
    """Every token by its id, of a Unigram model from pairs of token and score."""
    if isinstance(vocab, dict):
        return {i: token for token, i in vocab.items()}
    return {i: pair[0] for i, pair in enumerate(vocab)}


def _few(items: Iterable) -> str:
    """The first of several, and how many more there are."""
    every = [str(item) for item in items]
    more = len(every) - NAMED
    listed = ", ".join(every[:NAMED])
    return f"{listed} and {more:,} more" if more > 0 else listed
