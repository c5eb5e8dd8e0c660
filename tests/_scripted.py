"""A real model and server whose logits alone are a script's: what the model says is known before.

The template, the cache, the programs, the mask of a form and the sampler run as ever.
So where a script leaves its form, the mask takes its token, and another one is drawn.
"""

from collections.abc import Callable, Sequence
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from _command import chatty_copy
from ane_book.bundle import Bundle
import numpy as np
from tokenizers import AddedToken, Tokenizer

if TYPE_CHECKING:
    from ane_serve.pool import Model


WANTED = 40.0  # logits above all others


def talking(
    bundle: Bundle, folder: Path, template: str, special: list[str], added: Sequence[str] = ()
) -> Bundle:
    """A copy of a tiny bundle with a chat template, and with more tokens, special and not."""
    copy = chatty_copy(bundle.path, folder, chat_template=template)
    manifest = json.loads((copy / "manifest.json").read_text())
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in added])
    assert tokenizer.get_vocab_size() <= manifest["embedding"]["shape"][0]
    tokenizer.save(str(copy / "tokenizer.json"))
    manifest["files"]["tokenizer.json"] = (copy / "tokenizer.json").stat().st_size
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return Bundle.open(copy)


def scripted(bundle: Bundle, name: str, say: Callable[[str], str]) -> "Model":
    """The bundle as a server takes it. say: an answer to a prompt, both with special tokens; NUL
    within such a one's text has the model spell it."""
    from ane_serve.pool import bundle_model

    model = bundle_model(bundle, name, precision="fp32")
    return dataclasses.replace(model, slots=lambda: [_follow(slot, say) for slot in model.slots()])


def _follow(slot, say: Callable[[str], str]):
    session = slot.session
    tokenizer, ends = session.tokenizer, session.bundle.manifest.tokenizer.eos_token_ids
    stream, after = session.stream, session._after
    at = {"prompt": 0, "answer": []}

    def prompted(ids, *arguments, **options):
        text = tokenizer.decode(ids, skip_special_tokens=False)
        parts = tokenizer.encode_batch(say(text).split("\0"), add_special_tokens=False)
        answer = [token for part in parts for token in part.ids]
        at.update(prompt=len(ids), answer=[*answer, ends[0]])
        return stream(ids, *arguments, **options)

    def told(call):
        logits = np.array(after(call))
        wanted = at["answer"][session.position - at["prompt"] :][:1]
        logits[-1:, wanted] = WANTED + np.abs(logits).max()
        return logits

    session.stream, session._after = prompted, told
    return slot
