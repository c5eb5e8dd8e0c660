"""The server under load: time to the first token, and answers that nobody mixes up.

Two runs on loopback, against `ane-book serve` in a process of its own: 1,000 streams of 32
clients on a tiny model, each compared with the serial answer; streams of SmolLM2 at 1, 4 and 16
clients, with how many prompt tokens the cache had. `serve_memory.py` watches the memory.
Seconds depend on the machine, and on who else uses it.
"""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
import json
from pathlib import Path
import re
import subprocess
import sys
from tempfile import TemporaryDirectory
import time

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / folder) for folder in ("benchmarks", "tests")]

from _command import chatty_copy
from _common import bundle, record
from _tiny import tiny_model, write_checkpoint
import ane_book
import httpx
import numpy as np

CHAT = "/v1/chat/completions"


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    command = [sys.executable, "-m", "ane_book", "serve", f"model={folder}", "--port", "0"]
    process = subprocess.Popen([*command, "--queue", "1000"], stderr=subprocess.PIPE, text=True)
    try:
        found = None
        while not found:
            found = re.search(r"at (http://\S+)/v1", process.stderr.readline())
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield process, found[1]
    finally:
        process.terminate()
        process.wait()
        drain.wait()


async def ask(client: httpx.AsyncClient, body: dict) -> tuple[str, float, int]:
    """The answer to a streamed request, seconds to its first text, cached prompt tokens."""
    start, first, text, cached = time.perf_counter(), None, "", 0
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", CHAT, json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content")
                if piece:
                    first = first or time.perf_counter() - start
                    text += piece
            cached = (
                (chunk.get("usage") or {})
                .get("prompt_tokens_details", {})
                .get("cached_tokens", cached)
            )
    return text, first or time.perf_counter() - start, cached


async def ask_all(address: str, bodies: list[dict], at_once: int) -> list[tuple[str, float, int]]:
    turn, limits = asyncio.Semaphore(at_once), httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:

        async def one(body: dict) -> tuple[str, float, int]:
            async with turn:
                return await ask(client, body)

        return await asyncio.gather(*map(one, bodies))


def messages(text: str, system: str) -> list[dict]:
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def summary(found: list[tuple[str, float, int]], seconds: float) -> dict:
    p50, p95 = np.quantile([first for _, first, _ in found], [0.5, 0.95])
    return {"requests": len(found), "seconds": seconds, "per_second": len(found) / seconds,
            "first_token_p50_s": p50, "first_token_p95_s": p95}  # fmt: skip


def thousand(folder: Path, count: int) -> dict:
    """Streams of 32 clients on a tiny model against what a session alone says."""
    system, session = "You are of great help to all of us here.", ane_book.Session(folder)
    bodies, expected = [], []
    for i in range(50):
        sampling = {"max_tokens": 1 + i % 8, "temperature": float(i % 2), "seed": i}
        bodies.append({"messages": messages(f"Number {i}", system), **sampling})
        expected.append(session.generate(bodies[-1]["messages"], **sampling).text)
    with serving(folder) as (_, address):
        start = time.perf_counter()
        found = asyncio.run(ask_all(address, [bodies[i % 50] for i in range(count)], 32))
        row = summary(found, time.perf_counter() - start)
    wrong = sum(text != expected[i % 50] for i, (text, _, _) in enumerate(found))
    return row | {"clients": 32, "wrong": wrong}


def smollm2(count: int) -> dict:
    """Streams of SmolLM2 by clients who share a system prompt of several prefill calls."""
    system = "You answer questions about capitals, in one short sentence. " * 8
    cities = ("France", "Italy", "Spain", "Norway", "Peru", "Japan", "Chile", "Kenya", "Cuba")
    bodies = [
        {"messages": messages(f"What is the capital of {city}?", system), "max_tokens": 8,
         "temperature": 0}
        for city in cities
    ]  # fmt: skip
    rows = {}
    with serving(bundle().path) as (_, address):
        for clients in (1, 4, 16):
            start = time.perf_counter()
            asked = [bodies[i % len(bodies)] for i in range(count)]
            found = asyncio.run(ask_all(address, asked, clients))
            row = summary(found, time.perf_counter() - start)
            rows[str(clients)] = row | {"cached_p50": float(np.median([c for *_, c in found]))}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", type=int, default=1, help="divide every count by this")
    short = parser.parse_args().short
    with TemporaryDirectory() as place:
        source = write_checkpoint(tiny_model("llama"), Path(place) / "source")
        made = ane_book.convert(str(source), out=Path(place) / "tiny", context=128, prefill=16)
        folder = chatty_copy(made.path, Path(place), eos_token_ids=[])
        result = {"tiny": thousand(folder, 1000 // short), "smollm2": smollm2(48 // short)}
    print(json.dumps(result, indent=2))
    assert not result["tiny"]["wrong"]
    if short == 1:
        record("serve", result)


if __name__ == "__main__":
    main()
