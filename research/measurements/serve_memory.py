"""The server's memory over 10,000 requests of every kind: what it holds after 1,000 and at the end.

`ane-book serve` runs in a process of its own with a tiny model. Requests take turns: text whole and
streamed, calls of tools with ever another tool, a schema, the newer API, options to choose from, a
body that is refused, and a client that leaves. A grammar, a cache, a socket: what
any of them keeps for good shows in the resident set. Bytes are counted, no times.
"""

import argparse
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import record
import ane_book
import httpx
from serve import CHAT, chatty_copy, serving, tiny_model, write_checkpoint

MOST = 8 << 20  # bytes that nine tenths of the requests may add
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def bodies(i: int) -> list[tuple[str, dict]]:
    """A turn's requests, by path."""
    schema = {"type": "object", "properties": {f"city{i % 997}": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": f"weather{i}", "parameters": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return [
        (CHAT, ASK),
        (CHAT, ASK | {"stream": True, "stream_options": {"include_usage": True}}),
        (CHAT, ASK | {"tools": [tool], "tool_choice": "required", "stream": bool(i % 2)}),
        (CHAT, ASK | {"response_format": form, "n": 2}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "stream": bool(i % 2)}),
        ("/v1/choose", {"prompt": "Hi", "options": ["a", "b"]}),
        ("/v1/completions", {"model": "model", "prompt": f"{i}", "max_tokens": 1}),
        (CHAT, ASK | {"temperature": -1}),
    ]


def leave(client: httpx.Client) -> None:
    """Ask for a long answer, read one line of it, and go."""
    with client.stream("POST", CHAT, json=ASK | {"max_tokens": 90, "stream": True}) as response:
        next(response.iter_lines())


def resident(process: subprocess.Popen) -> int:
    """Bytes of the process that are in memory."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(process.pid)], capture_output=True,
                           text=True, check=True)  # fmt: skip
    return 1024 * int(shown.stdout)


def measure(folder: Path, count: int) -> dict:
    """The server's memory after each tenth of the requests, and how many it answered."""
    sizes, answered, asked, turn = [], 0, 0, 0
    with serving(folder) as (process, address), httpx.Client(base_url=address, timeout=600) as c:
        while asked < count:
            for path, body in bodies(turn):
                response = c.post(path, json=body)
                expected = 400 if "temperature" in body else 200
                assert response.status_code == expected, (body, response.text)
                answered += response.is_success
                asked += 1
                if asked % (count // 10) == 0:
                    sizes.append(resident(process))
            leave(c)
            turn, asked = turn + 1, asked + 1
            if asked % (count // 10) == 0:
                sizes.append(resident(process))
    return {"requests": asked, "answered": answered, "rss_bytes": sizes,
            "growth_bytes": sizes[-1] - sizes[0]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    count = parser.parse_args().requests
    with TemporaryDirectory() as place:
        model = tiny_model("llama", max_position_embeddings=1024)
        source = write_checkpoint(model, Path(place) / "source")
        made = ane_book.convert(str(source), out=Path(place) / "tiny", context=1024, prefill=64)
        found = measure(chatty_copy(made.path, Path(place)), count)
    print(found)
    assert found["growth_bytes"] < MOST
    if count == 10_000:
        record("serve_memory", {"most_bytes": MOST, **found})


if __name__ == "__main__":
    main()
