"""Answer requests that are lines, on a unix socket or on stdin.

    {"tokens": [151644, 8948], "max_tokens": 50}       token ids, as they are
    {"prompt": "What is 2+2?", "system": "Be brief."}  a question, through the chat template
    151644 8948 198|20                                 on stdin: token ids, most of the answer's

A line of JSON gets a line of JSON, a line of token ids those of its answer. Answers are greedy
unless a temperature is given. A socket's requests wait in the queue with those over HTTP.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
import json
import os
from pathlib import Path
import select
import socket
import stat
import sys
import time

from ane_book.errors import AneBookError, InvalidInput
from ane_serve.api import requests
from ane_serve.api.answers import as_json
from ane_serve.api.refusal import Refusal, refusal_of
from ane_serve.generation import Ask, Finished, ServedSession, answers
from ane_serve.jobs import Gone, Job, Jobs
from ane_serve.pool import Model
from pydantic import ValidationError

LONGEST = 4 << 20  # bytes of a line
LOOK_S = 0.05  # seconds between two checks whether a client of a socket is still there


def asked(line: str | bytes) -> Ask:
    """Parse a line; raises Refusal."""
    try:
        if line.lstrip()[:1] not in ("{", b"{"):
            line = _from_ids(line if isinstance(line, str) else line.decode())
        request = requests.LineRequest.model_validate_json(line)
    except ValidationError as error:
        errors = [{**e, "loc": ("line", *e["loc"])} for e in error.errors(include_url=False)]
        raise requests.refuse_invalid(errors) from None
    except UnicodeError:
        raise Refusal(400, "a line has to be UTF-8", code="invalid_json") from None
    return request.ask()


def _from_ids(line: str) -> str:
    """Turn token ids and, after a bar, the most tokens of an answer, into JSON."""
    ids, bar, most = line.partition("|")
    try:
        asked = {"tokens": [int(word) for word in ids.split()]}
        return json.dumps(asked | ({"max_tokens": int(most)} if bar else {}))
    except ValueError:
        raise Refusal(
            400, "a line is JSON, or token ids like 151644 8948 198|20", code="invalid_json"
        ) from None


def told(done: Finished, start: float) -> dict:
    """An answer in the source's form (`ane_serve.api.answers`)."""
    result = done.result
    return {
        "text": result.text,
        "tokens": result.token_ids,
        "prompt_tokens": result.prompt_tokens,
        "gen_tokens": len(result.token_ids),
        "prefill_tps": result.prefill_tps,
        "decode_tps": result.decode_tps,
        "elapsed_s": round(time.monotonic() - start, 4),
    }


def answer_lines(lines: Iterable[str], served: ServedSession) -> Iterator[str]:
    """Answer each line that is not blank, in turn, with one model; yields a line for each."""
    for line in filter(str.strip, lines):
        start, ids = time.monotonic(), not line.lstrip().startswith("{")
        try:
            events = answers(served, asked(line))
            *_, done = (each for each in events if isinstance(each, Finished))
        except (Refusal, AneBookError) as error:
            yield as_json(refusal_of(error, "the model").body()).decode()
            continue
        words = " ".join(map(str, done.result.token_ids))
        yield words if ids else as_json(told(done, start)).decode()


async def listen(
    path: Path, jobs: Jobs, model: Model, seconds: float
) -> tuple[asyncio.Server, set[asyncio.StreamWriter]]:
    """Listen on a unix socket that only its owner may open; also returns the writers at work.

    Raises InvalidInput.
    """
    _make_way(path)
    busy = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, Gone):
            async for line in _lines(reader):
                busy.add(writer)
                writer.write(await _answer(line, jobs, model, seconds, writer) + b"\n")
                await writer.drain()
                busy.discard(writer)
        busy.discard(writer)
        writer.close()

    before = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(serve, path, limit=LONGEST), busy
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from None
    finally:
        os.umask(before)


def _make_way(path: Path) -> None:
    """Delete the socket of a server that is gone; raises InvalidInput for anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInput(f"{path} exists and is no socket; give another path (--socket)")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise InvalidInput(f"{path}: another server listens there; give another path (--socket)")


async def _lines(reader: asyncio.StreamReader):
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            if end.partial.strip():
                yield end.partial
            return
        except asyncio.LimitOverrunError:
            return
        if line.strip():
            yield line


async def _answer(line: bytes, jobs: Jobs, model: Model, seconds: float, writer) -> bytes:
    start = time.monotonic()
    try:
        ask = asked(line)
        job = Job(model, lambda served: answers(served, ask))
        async with jobs.doing(job, _watch(writer), seconds):
            *_, done = [event async for event in job.events() if isinstance(event, Finished)]
        return as_json(told(done, start))
    except Refusal as refusal:
        return as_json(refusal.body())


def _watch(writer: asyncio.StreamWriter) -> Callable:
    """A `receive` that tells when both directions are closed.

    A client that has sent all it has may still read. Linux alone tells the two apart; elsewhere
    every answer is made to its end.
    """
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)

    async def receive() -> dict:
        while sys.platform != "linux" or not poll.poll(0):
            await asyncio.sleep(LOOK_S)
        return {"type": "http.disconnect"}

    return receive
