"""What the routers of a mixture choose on a text, for the chapter on experts.

    choices = routing.of_text(bundle, routing.page())
    choices.gates        # (L, E, tokens): 0 for the experts that a token does not take
    choices.places       # where each token lies in the text

Letters: L layers, E experts, C hidden size.
"""

from dataclasses import dataclass
import re

import ane_book
from ane_book.bundle import Bundle
from ane_book.runtime.backends import LoadedFunction, MILBackend
from ane_book_pages import records
import numpy as np

#: Where a text is cut for a tagger that reads a sentence at a time; JSON after its fields.
CUT = re.compile(r'(?<=\. )|(?<=\n)|(?<=", )')


@dataclass(frozen=True)
class Choices:
    """inputs: what each layer's router reads, (L, C, tokens). gates: what it answers, (L, E,
    tokens). places: each token's first character in the text and the one after its last."""

    inputs: np.ndarray
    gates: np.ndarray
    places: list[tuple[int, int]]


class _Watching(MILBackend):
    """Keeps what the programs around the experts hand to the host, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def load(self, package, function) -> LoadedFunction:
        loaded = super().load(package, function)
        run = loaded.predict

        def predict(inputs, state=None, **how):
            outputs = run(inputs, state, **how)
            if "gates" in outputs:
                self.seen.append((outputs["x"][0, :, 0], outputs["gates"][0, :, 0]))
            return outputs

        loaded.predict = predict  # type: ignore[method-assign]
        return loaded


def page() -> str:
    """A page with invented personal data, which is what the small tagger was made for."""
    return records.find("train/page.txt").read_text("utf-8")


def of_text(bundle: Bundle, text: str) -> Choices:
    """Tag a text sentence by sentence, and keep what the routers read and chose.

    bundle: of a tagger, converted with experts="dispatch": only then the choice leaves the graph.
    """
    watching = _Watching()
    tagger = ane_book.Tagger(bundle, backend=watching)
    inputs, gates, places, start = [], [], [], 0
    for part in CUT.split(text):
        if part.strip():
            watching.seen.clear()
            tags = tagger.tag(part)
            read, chosen = (np.stack(rows) for rows in zip(*watching.seen, strict=True))
            inputs.append(read[:, :, : len(tags)])  # what comes after is padding
            gates.append(chosen[:, :, : len(tags)])
            places += [(start + tag.start, start + tag.end) for tag in tags]
        start += len(part)
    return Choices(np.concatenate(inputs, axis=2), np.concatenate(gates, axis=2), places)
