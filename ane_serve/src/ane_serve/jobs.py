"""`Jobs`: the queue of requests, and the threads that work it off.

Two jobs at once on an engine were seen to take as long as one after the other, so a thread takes
one after the other. A job's results go to its own queue in the event loop, which is never longer
than its answer: a slow reader fills that queue, and does not hold up the model. A job whose client
has left ends with its present step.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, closing
from threading import Condition, Thread
import time
from typing import Any

from ane_serve.api.refusal import Refusal, refusal_of
from ane_serve.pool import Model, Pool

UNREAD = 10.0  # seconds after its deadline that a client has to take what is left of its answer


class Gone(Exception):
    """The client has left; there is nobody to answer."""


class Job:
    """Something to be done with a model, step by step.

    steps: takes a slot of the model and yields results, None for a step without one.
    """

    def __init__(self, model: Model, steps: Callable[[Any], Generator]):
        self.model, self.steps = model, steps
        self.left = False
        self.begun: float | None = None
        self._loop = asyncio.get_running_loop()
        self._made: asyncio.Queue = asyncio.Queue()

    def put(self, event: object) -> None:
        """Put a result into the job's queue; called by the working thread."""
        try:
            self._loop.call_soon_threadsafe(self._made.put_nowait, event)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            self.left = True

    async def events(self) -> AsyncIterator:
        """Yield the results until the end; raises Refusal or Gone."""
        while (event := await self._made.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def leave(self, why: Exception) -> None:
        """End the job: `events` raises `why`, and the model is free after its present step."""
        self.left = True
        self._made.put_nowait(why)


class Jobs:
    """A queue and the threads that work it off.

    slots: how many may be at work at once. waiting: how many may wait.
    """

    def __init__(self, pool: Pool, slots: int = 1, waiting: int = 64):
        self.pool, self._most = pool, waiting
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._change = Condition()
        self._seconds = 1.0  # of a job, lately
        self._closed = False
        for i in range(slots):
            Thread(target=self._serve, name=f"jobs {i}", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @asynccontextmanager
    async def doing(self, job: Job, receive: Callable, seconds: float) -> AsyncIterator[Job]:
        """Queue a job, watch for its client to leave, and end it with the block or the deadline.

        At the deadline `job.events` raises a Refusal, before an answer or in the middle of one. A
        client that takes nothing of it for another while counts as one that has left: Gone.
        """
        self._submit(job)
        gone = asyncio.create_task(disconnected(receive))
        gone.add_done_callback(lambda _: job.leave(Gone()))
        late = f"no answer within {seconds:g} s, the server's limit (--timeout)"
        refusal = Refusal(504, late, code="timeout")
        deadline = asyncio.get_running_loop().call_later(seconds, job.leave, refusal)
        try:
            async with asyncio.timeout(seconds + UNREAD):
                yield job
        except TimeoutError:
            raise Gone from None
        finally:
            gone.cancel()
            deadline.cancel()
            job.left = True
            self._drop(job)

    def _submit(self, job: Job) -> None:
        with self._change:
            if self._closed:
                raise _stopping()
            if len(self._waiting) >= self._most:
                retry = max(1, round(self._seconds * len(self._waiting)))
                message = f"{len(self._waiting)} requests are waiting, as many as may (--queue)"
                raise Refusal(429, message, code="queue_full", retry=min(retry, 60))
            self._waiting.append(job)
            self._change.notify()

    def _drop(self, job: Job) -> None:
        with self._change:
            if job in self._waiting:
                self._waiting.remove(job)

    def close(self) -> None:
        """Refuse new jobs and those that wait; those that run go on."""
        with self._change:
            self._closed, waiting = True, list(self._waiting)
            self._waiting.clear()
            self._change.notify_all()
        for job in waiting:
            job.put(_stopping())

    def _next(self) -> Job | None:
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            job = self._waiting.popleft()
            self._running.append(job)
            return job

    def _serve(self) -> None:
        while job := self._next():
            job.begun = time.monotonic()
            try:
                self._do(job)
            except Exception as error:
                job.put(refusal_of(error, job.model.name))
            finally:
                with self._change:
                    self._running.remove(job)
                    self._seconds += 0.2 * (time.monotonic() - job.begun - self._seconds)

    def _do(self, job: Job) -> None:
        if job.left:
            return
        with self.pool.borrowed(job.model) as slot:
            with closing(job.steps(slot)) as steps:
                for event in steps:
                    if job.left:
                        return
                    if event is not None:
                        job.put(event)
            job.put(None)  # the client need not wait until the slot has put its cache away


def _stopping() -> Refusal:
    return Refusal(503, "the server is being stopped", code="stopping", retry=5)


async def disconnected(receive: Callable) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
