"""`ClusterPipeline`: run a bundle's layers on several machines, for several sessions at once.

A call goes through the stages in order, and each stage takes its next call at once, so that as many
sessions, or chunks of one prompt, are at work as there are stages. Where a machine is lost, the
stages are placed again on those that are left, once for all sessions, and each session repeats the
calls that it has made: the same calls give the same caches, to the bit. Nothing else is retried.

Letters: C hidden size, n tokens of a call, T those that its function takes.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
import weakref

from ane_book.bundle import Bundle, opened
from ane_book.errors import InvalidInput
from ane_book.runtime.adapters import Adapter
from ane_book.runtime.backends import choose_backend
from ane_book.runtime.model_runner import ModelRunner
from ane_book.runtime.session import Session
from ane_serve.cluster.layout import units
from ane_serve.cluster.placement import MachineLost, PlacedStage, Stages, place, result
import numpy as np

RETRIES = 2  # losses that one call survives


class Call(NamedTuple):
    """A call through all stages: the function, the tokens (n,), the slot of the first one."""

    function: str
    ids: np.ndarray
    position: int


class ClusterPipeline:
    """A bundle's layers on the machines of the cluster that `joined` has joined.

    precision, backend: as of a `Session`; backend None lets every machine take its own best.
    machines: at most so many; by default all, or as many as the bundle has shards.

    Close it, or use it in a `with`. Raises MachineLost, InvalidInput or InvalidBundle.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        precision: str = "fp16",
        backend: str | None = None,
        machines: int | None = None,
        force: bool = False,
    ):
        self.bundle = opened(bundle, "text-generation", force)
        if self.bundle.manifest.has_memory:
            raise InvalidInput(
                f"{self.bundle.path}: its layers have a memory, of which a cluster keeps no copies "
                "to go back by; run it on one machine, as a Session"
            )
        if self.bundle.manifest.per_layer is not None:
            raise InvalidInput(
                f"{self.bundle.path}: its layers have inputs of their own, for which the machines "
                "of a cluster have no table; run it on one machine, as a Session"
            )
        self.backend = choose_backend(backend, precision)
        self.head_turn = RLock()  # a lock on the head, which sessions share
        self._place = partial(
            place, self.bundle, precision=precision, backend=backend, most=machines
        )
        self._numbers, self._turn = count(), RLock()
        self._ended: deque[int] = deque()
        self._stages: Stages | None = None
        self._generation, self._closed = 0, False
        self._stages = self._place()

    def __enter__(self) -> "ClusterPipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stages, and with them all sessions."""
        with self._turn:
            self._closed = True
            self._end()

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of a process nothing may be left to end it with
            self.close()

    def _end(self) -> None:
        stages, self._stages = self._stages, None
        if stages is not None:
            stages.end()

    @property
    def slots(self) -> int:
        """How many sessions can be at work at once: as many as stages."""
        return len(self._placed)

    @property
    def layers(self) -> list[tuple[str, range]]:
        """Every stage's node, and its layers."""
        layers = [parts[0].span for parts in units(self.bundle.manifest)]
        return [
            (stage.node, range(layers[stage.units[0]].start, layers[stage.units[-1]].stop))
            for stage in self._placed
        ]

    @property
    def _placed(self) -> tuple[PlacedStage, ...]:
        return self._stages.placed if self._stages else ()

    def session(self) -> Session:
        """A new session; several may be at work, each in a thread of its own."""
        return Session(self.bundle, backend=self.backend, force=True, runner=FarRunner(self))

    def sessions(self) -> list[Session]:
        """As many sessions as can be at work at once; the pipeline ends with the last of them."""
        return [self.session() for _ in range(self.slots)]

    # --- for runners

    def current(self, caches: "Caches | None" = None) -> "Caches":
        """These caches if their stages are still there, else new ones, made at the first call."""
        if caches is not None and caches.generation == self._generation:
            return caches
        caches = Caches(next(self._numbers), self._generation)
        weakref.finalize(caches, self._ended.append, caches.number).atexit = False
        return caches

    def submit(self, caches: "Caches", function: str, position: int, hidden: np.ndarray) -> Any:
        """Send a call through all stages; returns Ray's reference to its result.

        Raises MachineLost where the caches are gone.
        """
        with self._turn:  # so that every stage sees calls in the same order
            if caches.generation != self._generation or self._stages is None:
                raise MachineLost("the machines that held a session were lost")
            ended, values = [], {"hidden": hidden}
            with suppress(IndexError):
                while True:
                    ended.append(self._ended.popleft())
            for stage in self._placed:
                values = stage.actor.run.remote(caches.number, ended, function, position, values)
            return values

    def place_again(self, generation: int) -> None:
        """Place stages on the nodes left, unless another session did since that generation."""
        with self._turn:
            if self._closed:
                raise MachineLost("the pipeline has been closed")
            if generation == self._generation:
                self._end()
                self._stages = self._place()
                self._generation += 1


class Caches:
    """The caches of a session on the stages of one generation; they end with it."""

    def __init__(self, number: int, generation: int):
        self.number, self.generation = number, generation


class FarRunner(ModelRunner):
    """Runs a model whose layers are on other machines."""

    def __init__(self, pipeline: ClusterPipeline):
        super().__init__(pipeline.bundle, pipeline.backend, steps=[])
        self._pipeline = pipeline
        self.clear()

    def clear(self) -> None:
        """Take new, empty caches; the stages drop the old ones at a later call."""
        self._caches = self._pipeline.current()
        self._ran: list[Call] = []

    def use(self, adapter: Adapter | None) -> None:
        """Raise InvalidInput for an adapter: the stages take none."""
        if adapter is not None:
            raise InvalidInput(
                f"{adapter.place}: adapters are not sent to the machines of a cluster; serve the "
                "bundle from one machine"
            )

    def head(self, hidden: np.ndarray) -> np.ndarray | list[int]:
        with self._pipeline.head_turn:
            return super().head(hidden)

    def forward(self, function: str, ids: np.ndarray, position: int) -> np.ndarray:
        (hidden,) = self.passes([(function, ids, position)])
        return hidden

    def passes(self, calls: Iterable[tuple[str, np.ndarray, int]]) -> Iterator[np.ndarray]:
        """Run calls in order, with several on their way at once."""
        todo, losses = [Call(*call) for call in calls], 0
        while todo:
            caches = self._pipeline.current(self._caches)
            try:
                if caches is not self._caches:  # lost: the same calls make the same caches again
                    deque(self._flow(self._ran, caches), maxlen=0)
                    self._caches = caches
                for hidden in self._flow(todo, caches):
                    self._note(todo.pop(0))
                    yield hidden
            except MachineLost:
                losses += 1
                if losses > RETRIES:
                    raise
                self._pipeline.place_again(caches.generation)

    def _flow(self, calls: Sequence[Call], caches: "Caches") -> Iterator[np.ndarray]:
        """Send calls through all stages, at most as many at once as there are stages."""
        waiting: deque = deque()
        for call in list(calls):
            columns = self._inputs.columns(call.ids).astype(self._pipeline.backend.dtype)
            name = self._tiered(call.function, call.position)
            reference = self._pipeline.submit(caches, name, call.position, columns[None, :, None])
            waiting.append((call, reference))
            if len(waiting) >= self._pipeline.slots:
                yield self._arrived(*waiting.popleft())
        while waiting:
            yield self._arrived(*waiting.popleft())

    def _arrived(self, call: Call, reference: Any) -> np.ndarray:
        hidden = result(reference, "a machine of the cluster")["hidden"]
        T = self._inputs.tokens(call.function)
        return np.pad(hidden, [(0, 0)] * 3 + [(0, T - len(call.ids))])

    def _note(self, call: Call) -> None:
        """Record a call, to repeat it; tokens of earlier calls that it overwrites are dropped."""
        while self._ran and self._ran[-1].position >= call.position:
            self._ran.pop()
        if self._ran:
            last = self._ran[-1]
            self._ran[-1] = last._replace(ids=last.ids[: call.position - last.position])
        self._ran.append(call)
