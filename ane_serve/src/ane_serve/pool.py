"""The models of a server: loaded when they are asked for, unloaded when memory is short.

A request can only name a model; the folder of each is set when the server starts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
import gc
from hashlib import sha256
import logging
from pathlib import Path
from threading import Condition
import time

from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.runtime import Embedder, Session
from ane_book.runtime.adapters import Adapter, read_adapter
from ane_book.runtime.backends import Backend
from ane_serve.api.refusal import Refusal
from ane_serve.generation import ServedSession
from ane_serve.kept import KeptSession
from ane_serve.slots import Slots

TEXT, EMBEDDING = "text-generation", "embedding"
DOES = {TEXT: "generates text", EMBEDDING: "makes vectors"}

log = logging.getLogger("ane_serve")


@dataclass(frozen=True, eq=False)
class Model:
    """A model that is served by its name.

    bytes: of memory, about. slots: loads it, and returns a slot for each request at once. context:
    most tokens of prompt and answer, or of a text. size: of a vector, or of a hidden state. argmax:
    it gives the likeliest token alone. seal: of its bundle, and of its adapter. bundle: where it is
    one. base: the model whose slots answer for it with the adapter; "": its own.
    """

    name: str
    task: str
    bytes: int
    slots: Callable[[], list]
    context: int
    size: int
    created: int
    argmax: bool = False
    seal: str = ""
    bundle: Bundle | None = None
    adapter: Adapter | None = None
    base: str = ""

    @property
    def opened_as(self) -> str:
        """The name of the model whose slots answer."""
        return self.base or self.name


def bundle_model(
    bundle: Bundle,
    name: str | None = None,
    sessions: Callable[[], list[Session]] | None = None,
    precision: str = "fp16",
    backend: Backend | str | None = None,
    force: bool = False,
) -> Model:
    """Make a `Model` of a bundle.

    sessions: makes the sessions, a slot each, where they run on several machines. precision,
    backend, force: as a `Session` takes them.
    """
    manifest = bundle.manifest
    name = name or manifest.name
    if manifest.task not in DOES:
        raise InvalidInput(f"{name} is for {manifest.task}; text and vectors are served")

    def opened() -> list:
        if sessions is not None:
            return [ServedSession(session) for session in sessions()]
        if manifest.task == EMBEDDING:
            return [Embedder(bundle, precision, backend, force)]
        return [ServedSession(KeptSession(bundle, precision, backend, force))]

    return Model(
        name,
        manifest.task,
        bytes=sum(manifest.files.values()),
        slots=opened,
        context=manifest.context,
        size=manifest.vector_size,
        created=int((bundle.path / "manifest.json").stat().st_mtime),
        argmax=manifest.argmax_output,
        seal=manifest.seal,
        bundle=bundle,
    )


def adapted_models(models: list[Model], folders: dict[str, Path]) -> list[Model]:
    """Make a `Model` of each adapter, by the name that it has behind "BASE:".

    Raises InvalidInput unless exactly one of the models has slots for them, and what
    `ane_book.runtime.adapters.read_adapter` raises.
    """
    fit = [model for model in models if model.bundle and model.bundle.manifest.adapters]
    if len(fit) != 1:
        names = ", ".join(model.name for model in fit) or "none"
        raise InvalidInput(
            "--adapter takes one model that was converted with lora_slots (--lora-slots R), and "
            f"of those that are served it is {names}"
        )
    return [_adapted(fit[0], name, folder) for name, folder in folders.items()]


def _adapted(base: Model, name: str, folder: Path) -> Model:
    assert base.bundle is not None, "one with slots has a bundle"
    adapter = read_adapter(folder, base.bundle)
    seal = sha256(base.seal.encode())
    for arrays in adapter.arrays.values():
        for array in arrays.values():
            seal.update(array.data)
    named = f"{base.name}:{name}"
    return replace(base, name=named, seal=seal.hexdigest(), adapter=adapter, base=base.name)


@dataclass
class _Open:
    """A model that is in memory, with the slots that are free and how many are at work."""

    model: Model
    free: list = field(default_factory=list)
    busy: int = 0


class Pool:
    """Models by name; in memory at most `memory` bytes of them, where that is given.

    slots: the caches of conversations that they have had, if those are kept.

    Raises InvalidInput for two models of one name, and for one that alone is too large.
    """

    def __init__(self, models: list[Model], memory: int | None = None, slots: Slots | None = None):
        self.models, self.slots = {model.name: model for model in models}, slots
        if not models:
            raise InvalidInput("give at least one model to serve: a name, or a bundle's folder")
        names = [model.name for model in models]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput(
                f"more than one model is named {twice[0]!r}, after the weights that it was made "
                f"of; give each a name of its own, such as {twice[0]}-2=FOLDER"
            )
        for model in models:
            if memory is not None and model.bytes > memory:
                raise InvalidInput(
                    f"{model.name} takes {model.bytes:,} bytes, more than the limit of "
                    f"{memory:,} (--memory)"
                )
        self._memory, self._change = memory, Condition()
        self._open: dict[str, _Open] = {}

    def find(self, name: str | None, task: str) -> Model:
        """The model of a name, or the first for a task; raises Refusal."""
        fit = [model for model in self.models.values() if model.task == task]
        if name is None and fit:
            return fit[0]
        model = self.models.get(name or "")
        if model is None:
            names = ", ".join(each.name for each in fit) or "no model"
            asked = "" if name is None else f"the model {name[:100]!r} does not exist; "
            message = f"{asked}here {names} {DOES[task]}"
            raise Refusal(404, message, code="model_not_found", param="model")
        if model.task != task:
            message = f"{name} {DOES[model.task]}; this path is for one that {DOES[task]}"
            raise Refusal(400, message, code="model_not_supported", param="model")
        return model

    def loaded(self) -> list[str]:
        """The models in memory, the least recently used first."""
        return [m.name for name in self._open for m in self.models.values() if m.opened_as == name]

    @contextmanager
    def borrowed(self, model: Model) -> Iterator:
        """Borrow a slot of a model; waits while all are busy, or others hold the memory for it.

        A slot that served another adapter of its model forgets what it has of that.
        """
        opened = self.models[model.opened_as]
        with self._change:
            self._change.wait_for(lambda: self._ready(opened))
            held = self._open.pop(opened.name)
            self._open[opened.name] = held  # the most recently used
            slot = held.free.pop()
            held.busy += 1
        try:
            if model.task == TEXT:
                slot.use(model.adapter, model.seal, self.slots)
            yield slot
            if model.task == TEXT:
                slot.put_away()
        finally:
            with self._change:
                held.free.append(slot)
                held.busy -= 1
                self._change.notify_all()

    def _ready(self, model: Model) -> bool:
        """Whether a slot is free; loads the model first if there is room."""
        held = self._open.get(model.name)
        if held is not None:
            return bool(held.free)
        if not self._make_room(model):
            return False
        start = time.monotonic()
        self._open[model.name] = _Open(model, model.slots())
        log.info("opened %s in %.2f s", model.name, time.monotonic() - start)
        return True

    def _make_room(self, model: Model) -> bool:
        """Unload idle models, the least recently used first, until the model fits; False if not."""
        idle = [held for held in self._open.values() if not held.busy]
        while self._memory is not None and self._bytes() + model.bytes > self._memory:
            if not idle:
                return False
            gone = idle.pop(0).model.name
            del self._open[gone]
            gc.collect()  # programs and their runners refer to each other
            log.info("let go %s", gone)
        return True

    def _bytes(self) -> int:
        return sum(held.model.bytes for held in self._open.values())
