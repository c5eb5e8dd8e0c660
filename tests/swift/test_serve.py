"""`anebook serve` held to the Python server: the same requests to both, over real sockets."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
import json
from pathlib import Path
import re
import shutil
import signal
import socket
import subprocess
import sys

from _command import chatty_copy
from _patience import HANGING, until
from ane_book.bundle import Bundle
from ane_book.runtime import Session
from ane_book.serve.app import create_app
from ane_book.serve.pool import bundle_model
from ane_book.text.packed import packed_tokenizer
import httpx
import openai
import pytest
from starlette.testclient import TestClient

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PIPE = f"{sys.executable} -m mlprogram.pipe"
HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
SEGMENTS = {
    "start": "u:", "reply": ";a:", "next": ";u:", "end": ";",
    "system": {"before": "s:", "after": ";u:", "strip": "none", "last": False, "joined": False},
    "user": "none", "assistant": "none", "cut_strip": "none", "nonempty": False, "outside": [],
}  # fmt: skip
#: An executor that stands before every call until a file is there, and counts the calls.
GATED = """
import os, sys, time
from mlprogram import pipe
folder, parent, answer = sys.argv[1], os.getppid(), pipe.Programs.answer
def gated(self, request, payload):
    if "call" in request:
        with open(f"{folder}/calls", "a") as calls:
            calls.write(".")
        while not os.path.exists(f"{folder}/open"):
            if os.getppid() != parent:
                os._exit(1)
            time.sleep(0.005)
    return answer(self, request, payload)
pipe.Programs.answer = gated
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
pipe.main(sys.stdin.buffer, answers)
"""


@pytest.fixture(scope="module")
def talker(tiny_bundle, tmp_path_factory):
    """A tiny bundle with a chat template that never ends an answer by itself."""
    bundle = tiny_bundle("llama", kv="state", context=128, prefill=16)[1]
    return Bundle.open(
        chatty_copy(bundle.path, tmp_path_factory.mktemp("served"), eos_token_ids=[])
    )


@pytest.fixture(scope="module")
def folder(talker, tmp_path_factory):
    """The same with its tokenizer and template as Swift reads them."""
    folder = Path(shutil.copytree(talker.path, tmp_path_factory.mktemp("swift") / "bundle"))
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    packed = packed_tokenizer((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.bin").write_bytes(packed)
    manifest["files"]["tokenizer.bin"] = len(packed)
    manifest["tokenizer"] |= {"packed": "tokenizer.bin", "segments": SEGMENTS}
    path.write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def name(talker):
    return talker.manifest.name


@pytest.fixture(scope="module")
def session(talker):
    return Session(talker)


@pytest.fixture(scope="module")
def python(talker):
    """The Python server."""
    with TestClient(create_app([bundle_model(talker)]), base_url="http://localhost") as client:
        yield client


@contextmanager
def begun(anebook, folder, *arguments, executor=PIPE, port="0"):
    """`anebook serve` in a process of its own, and its address."""
    command = [*anebook, "serve", str(folder), "--executor", executor, *arguments]
    command += ["--port", port] if port else []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            assert line.startswith("serving "), line + process.stderr.read()
            places = line.split(" at ")[1].strip().removesuffix("/v1")
            yield process, places
        finally:
            process.kill()


@pytest.fixture(scope="module")
def address(anebook, folder):
    with begun(anebook, folder) as (_, address):
        yield address


@pytest.fixture(scope="module")
def swift(address):
    with httpx.Client(base_url=address, timeout=HANGING) as client:
        yield client


@pytest.fixture
def held(anebook, folder, tmp_path):
    """A server whose engine stands still: its process, its client, and the gate's folder."""
    (tmp_path / "gated.py").write_text(GATED)
    gate = tmp_path / "gate"
    gate.mkdir()
    executor = f"{sys.executable} {tmp_path / 'gated.py'} {gate}"
    with (
        begun(anebook, folder, executor=executor) as (process, address),
        httpx.Client(base_url=address, timeout=HANGING, limits=httpx.Limits()) as client,
    ):
        yield process, client, gate


def calls(gate) -> int:
    path = gate / "calls"
    return path.stat().st_size if path.exists() else 0


def chat(text: str = "Hello", **fields) -> dict:
    asked = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}
    return asked | fields


def connected(address) -> socket.socket:
    client = socket.socket()
    client.settimeout(HANGING)
    client.connect(("127.0.0.1", int(str(address).rpartition(":")[2])))
    return client


def raw(body: dict | bytes, path: str = CHAT, *headers: str) -> bytes:
    """A request as it goes over the wire."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    head += [f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + content


def timeless(text: str) -> str:
    """An answer less its number, times and rates; names, order and all else stay."""
    text = re.sub(r'"id":"(\w+)-[0-9a-f]{32}"', r'"id":"\1"', text)
    return re.sub(r'"(created|prefill_tps|decode_tps|elapsed_s)":[\d.]+', r'"\1":0', text)


ASKED = {
    "the source's": (TEXT, {"prompt": "What is 2+2?", "max_tokens": 7}),
    "the source's with a system prompt": (
        TEXT, {"prompt": "What is 2+2?", "max_tokens": 7, "system": "Be brief."}),
    "the source's without a number": (TEXT, {"prompt": "What is 2+2?"}),
    "the source's in a stream": (TEXT, {"prompt": "Hm", "max_tokens": 5, "stream": True,
        "stream_options": {"include_usage": True}}),
    "a list of one text": (TEXT, {"prompt": ["Once"], "seed": 1}),
    "a text": (TEXT, {"model": "", "prompt": "Once", "temperature": 0}),
    "texts": (TEXT, {"model": "", "prompt": ["Once", "Twice"], "temperature": 0, "n": 2}),
    "token ids": (TEXT, {"prompt": [1, 2, 3, 4], "temperature": 0, "max_tokens": 3}),
    "lists of them": (TEXT, {"prompt": [[1, 2], [3]], "temperature": 0.0, "max_tokens": 3}),
    "a chat": (CHAT, {"messages": HELLO, "temperature": 0, "max_tokens": 9}),
    "a drawn one": (CHAT, {"messages": HELLO, "seed": 3, "n": 3, "max_tokens": 9}),
    "with a seed below zero": (CHAT, {"messages": HELLO, "seed": -3, "max_tokens": 9}),
    "drawn among few": (CHAT, {"messages": HELLO, "seed": 7, "top_k": 5, "top_p": 0.7,
        "temperature": 1.5, "max_tokens": 9}),
    "with all fields": (CHAT, chat(user="me", logit_bias={}, tools=[], frequency_penalty=0.0,
        logprobs=False, presence_penalty=None, max_completion_tokens=4)),
    "in parts, by a developer": (CHAT, chat(messages=[{"role": "developer", "content": "Be."},
        {"role": "user", "content": [{"type": "text", "text": "é \u2028 😀"}]},
        {"role": "assistant", "content": "a", "refusal": None, "tool_calls": []},
        {"role": "user", "content": "b", "name": "c"}])),
    "until a stop": (CHAT, chat(max_tokens=60, stop=["a", "e", "o"])),
    "a stream": (CHAT, chat(stream=True, n=2)),
    "a stream with usage": (CHAT, chat(stream=True, stream_options={"include_usage": True})),
}  # fmt: skip


class TestTheSameAsPython:
    """Byte for byte, but for times and the random part of an id."""

    @pytest.mark.parametrize("what", ASKED)
    def test_answer(self, swift, python, name, what):
        path, body = ASKED[what]
        if "model" in body:
            body = body | {"model": name}
        expected, found = (client.post(path, json=body) for client in (python, swift))
        assert (found.status_code, expected.status_code) == (200, 200), found.text + expected.text
        assert found.headers["content-type"] == expected.headers["content-type"]
        assert timeless(found.text) == re.sub(
            r'"cached_tokens":\d+', lambda _: re.search(r'"cached_tokens":\d+', found.text)[0],
            timeless(expected.text),
        )  # fmt: skip

    @pytest.mark.parametrize("path", ["/v1/models", "/health"])
    def test_look(self, swift, python, path, name):
        expected, found = (client.get(path).json() for client in (python, swift))
        for each in (expected, found):
            for model in each.get("data", []):
                model |= {"created": 0, "loaded": True}
            each.pop("loaded", None)
        assert found == expected
        assert swift.get(f"/v1/models/{name}").json()["id"] == name

    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            *((CHAT, chat(**fields)) for fields in (
                {"model": "gpt-9"}, {"model": 3}, {"messages": []}, {"messages": 1},
                {"messages": [{"content": "Hi"}]}, {"messages": [{"role": "user"}]},
                {"messages": [{"role": "tool", "content": "Hi"}]}, {"messages": [1]},
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                {"messages": [{"role": "user", "content": "x" * 200}]}, {"temperature": -1},
                {"temperature": 3}, {"temperature": "hot"}, {"temperature": True},
                {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": "5"}, {"n": 1000},
                {"tools": [{"type": "function"}]}, {"response_format": {"type": "json_object"}},
                {"colour": "red"}, {"stop": 7}, {"stop": ["a"] * 17}, {"stop": [1]},
                {"top_k": 0}, {"top_p": 1.5}, {"seed": "x"},
                {"messages": [{"role": "user", "content": "Hi", "colour": "red"}]},
            )),
            *((TEXT, fields) for fields in (
                {}, [], None, 1, {"prompt": []}, {"prompt": [1, 9999]},
                {"prompt": [""]}, {"prompt": [-1]}, {"prompt": ["a", 1]}, {"prompt": [[]]}, {"prompt": 1},
                {"prompt": [[1], [9999]], "stream": True}, {"prompt": "Hi", "best_of": 3},
                {"prompt": "Hi", "messages": []},
            )),
        ],
    )  # fmt: skip
    def test_refusal(self, swift, python, path, fields):
        expected, found = (client.post(path, json=fields) for client in (python, swift))
        assert found.status_code == expected.status_code
        (told,), (says,) = (each.json().values() for each in (found, expected))
        if says["code"] == "context_length_exceeded":  # Python names its option to convert
            says["message"] = says["message"].replace(" (--context, now 128)", "")
        assert told == says

    @pytest.mark.parametrize(
        ("method", "path", "headers"),
        [
            ("GET", CHAT, {}),
            ("PUT", "/health", {}),
            ("POST", "/health", {"content-type": "application/json"}),
            ("POST", "/v1/images", {"content-type": "application/json"}),
            ("GET", "/v1/models/x", {}),
            ("POST", CHAT, {"content-type": "text/plain"}),
            ("POST", CHAT, {}),
            ("GET", "/health", {"host": "example.org"}),
        ],
    )
    def test_refusal_of_a_head(self, swift, python, method, path, headers):
        expected, found = (
            client.request(method, path, headers=headers) for client in (python, swift)
        )
        assert (found.status_code, found.json()) == (expected.status_code, expected.json())
        assert found.headers.get("allow") == expected.headers.get("allow")

    @pytest.mark.parametrize("body", [b"{'a': 1}", b'{"prompt": ', b'{"a": "\xff"}', b"[" * 9999])
    def test_what_is_not_json(self, swift, body):
        found = swift.post(CHAT, content=body, headers={"content-type": "application/json"})
        error = found.json()["error"]
        assert found.status_code == 400 and error["code"] == "invalid_json"
        assert error["message"].startswith("the body is not JSON")


def test_openais_client(address, session, name):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        expected = session.generate(HELLO, max_tokens=9)
        ask = {"model": name, "messages": HELLO, "max_tokens": 9, "temperature": 0}
        found = client.chat.completions.create(**ask)
        assert found.choices[0].message.content == expected.text
        chunks = list(client.chat.completions.create(**ask, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected.text
        assert [model.id for model in client.models.list()] == [name]
        with pytest.raises(openai.NotFoundError, match="'gpt-9' does not exist"):
            client.chat.completions.create(**ask | {"model": "gpt-9"})


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_sources_curl_line(address, session):
    line = """curl http://localhost:8000/v1/completions \\
-H "Content-Type: application/json" \\
-d '{"prompt": "What is 2+2?", "max_tokens": 50}'"""
    line = line.replace("localhost:8000", address.removeprefix("http://"))
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    found, expected = json.loads(done.stdout), session.generate("What is 2+2?", max_tokens=50)
    assert (found["text"], found["gen_tokens"]) == (expected.text, 50)
    assert found["prompt_tokens"] == expected.prompt_tokens
    assert all(found[key] > 0 for key in ("prefill_tps", "decode_tps", "elapsed_s"))


def test_32_clients_get_their_own_answers(address, session):
    """None lost and none mixed: each is, to the bit, what a session alone gives."""
    asked = {}
    for i in range(16):
        messages = [{"role": "system", "content": "These words are shared."}, HELLO[1]]
        sampling = {"temperature": 1.5, "seed": i, "max_tokens": 1 + i % 5}
        text = session.generate(messages, **sampling).text
        asked[i] = {"messages": messages, **sampling}, text

    def ask(number: int) -> None:
        body, text = asked[number % len(asked)]
        with httpx.Client(base_url=address, timeout=HANGING) as client:
            for _ in range(3):
                found = client.post(CHAT, json=body).json()
                assert found["choices"][0]["message"]["content"] == text, number

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(32)))


class TestBytes:
    """What a socket may say, and when."""

    def read(self, client, until: bytes) -> bytes:
        text = b""
        while until not in text and (part := client.recv(1 << 16)):
            text += part
        return text

    def test_pipelined_requests_are_answered_in_turn(self, address):
        asked = [raw({"prompt": [i + 1], "max_tokens": i + 1}, TEXT) for i in range(5)]
        with connected(address) as client:
            client.sendall(b"".join(asked) + raw(b"[]", TEXT, "Connection: close"))
            text = self.read(client, b"a JSON object").decode()
        assert re.findall(r'"completion_tokens":(\d)', text) == ["1", "2", "3", "4", "5"]
        assert text.count("HTTP/1.1 200 OK") == 5 and text.count("HTTP/1.1 400 Bad Request") == 1

    def test_byte_by_byte(self, address):
        with connected(address) as client:
            for byte in raw({"prompt": [1], "max_tokens": 2}, TEXT):
                client.sendall(bytes([byte]))
            assert b'"completion_tokens":2' in self.read(client, b"elapsed_s")

    def test_chunks_and_an_expectation(self, address):
        with connected(address) as client:
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.sendall(head.encode())
            assert self.read(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            body = json.dumps({"prompt": [1], "max_tokens": 2}).encode()
            for part in (body[:5], body[5:], b""):
                client.sendall(f"{len(part):X};x=y\r\n".encode() + part + b"\r\n")
            assert b'"completion_tokens":2' in self.read(client, b"elapsed_s")

    def test_an_old_client_gets_a_stream_without_chunks(self, address):
        with connected(address) as client:
            body = {"prompt": [1], "max_tokens": 2, "stream": True}
            client.sendall(raw(body, TEXT).replace(b"HTTP/1.1", b"HTTP/1.0"))
            head, _, body = self.read(client, b"never").partition(b"\r\n\r\n")
        assert b"chunked" not in head and body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")

    @pytest.mark.parametrize(
        ("text", "status"),
        [
            (b"what?\r\n\r\n", 400),
            (b"GET /health\r\n\r\n", 400),
            (b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n\n", 400),
            (b"GET /" + b"x" * (1 << 17), 431),
            (b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, 431),
            (raw(b"{}").replace(b"Length: 2", b"Length: -2"), 400),
            (raw(b"{}").replace(b"Length: 2", b"Length: 2\r\nContent-Length: 3"), 400),
            (raw(b"{}").replace(b"Length: 2", b"Length: 99999999999999999999"), 413),
            (raw(b"{}", CHAT, "Transfer-Encoding: chunked"), 400),
            (raw(b"{}").replace(b"Content-Length: 2", b"Transfer-Encoding: gzip"), 501),
            (raw(b"zz\r\n").replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"), 400),
            (raw(b"7fffffffffffffff\r\n").replace(b"Content-Length: 18",
                                                  b"Transfer-Encoding: chunked"), 413),
        ],
    )  # fmt: skip
    def test_what_is_no_request_is_refused_and_the_connection_closed(self, address, text, status):
        with connected(address) as client:
            client.sendall(text)
            found = self.read(client, b"never")
        assert found.startswith(f"HTTP/1.1 {status} ".encode()), found
        assert b'{"error":{"message":' in found and b"connection: close" in found

    def test_bodies_of_10_mb_and_more(self, swift):
        """At the limit a body is read, and above it refused before it has come."""
        headers = {"content-type": "application/json"}
        whole = b'{"prompt": "' + b"x" * (10_000_000 - 14) + b'"}'
        assert len(whole) == 10_000_000
        found = swift.post(TEXT, content=whole, headers=headers)
        assert found.json()["error"]["code"] == "context_length_exceeded"
        for more in (1, 5_000_000):
            found = swift.post(TEXT, content=whole + b" " * more, headers=headers)
            assert found.status_code == 413
            assert found.json()["error"]["message"] == "a body has at most 10,000,000 bytes"

    def test_half_a_request_holds_nothing(self, address, swift):
        text = raw({"prompt": [1], "max_tokens": 2}, TEXT)
        for part in (1, 40, len(text) - 3):
            with connected(address) as client:
                client.sendall(text[:part])
                assert swift.get("/health").json()["running"] == 0
                assert swift.post(TEXT, json={"prompt": [1]}).status_code == 200

    def test_head_has_no_body(self, swift):
        found = swift.head("/health")
        assert (found.status_code, found.content) == (405, b"")


class TestHeld:
    """Who waits, who is told to come again, who has gone, while the engine stands still."""

    def counts(self, client) -> tuple[int, int]:
        health = client.get("/health").json()
        return health["running"], health["waiting"]

    def test_a_queue_that_is_full(self, held):
        process, client, gate = held
        with ThreadPoolExecutor(33) as pool:
            asked = [pool.submit(httpx.post, str(client.base_url) + CHAT,
                     json=chat(max_tokens=i % 4 + 1), timeout=HANGING) for i in range(33)]
            until(lambda: self.counts(client) == (1, 32))
            refused = client.post(CHAT, json=chat())
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            (gate / "open").touch()
            for i, each in enumerate(asked):
                assert each.result().json()["usage"]["completion_tokens"] == i % 4 + 1
        assert self.counts(client) == (0, 0)

    def test_who_leaves_frees_the_engine_and_the_queue(self, held):
        _, client, gate = held
        with connected(client.base_url) as first:
            first.sendall(raw(chat(max_tokens=100)))
            until(lambda: calls(gate) == 1)
            with connected(client.base_url) as second:
                second.sendall(raw(chat()))
                until(lambda: self.counts(client) == (1, 1))
            until(lambda: self.counts(client) == (1, 0))
            first.shutdown(socket.SHUT_WR)
            assert first.recv(1) == b""  # the server has noticed
        # Once the program that it stands before is done, the answer ends.
        with ThreadPoolExecutor(1) as pool:
            next_ = pool.submit(client.post, CHAT, json=chat(max_tokens=1))
            until(lambda: self.counts(client) == (1, 1))
            (gate / "open").touch()
            assert next_.result().json()["usage"]["completion_tokens"] == 1
        assert calls(gate) <= 2 + 3  # programs, not a hundred tokens

    def test_who_leaves_a_stream(self, held):
        _, client, gate = held
        (gate / "open").touch()
        with connected(client.base_url) as first:
            first.sendall(raw(chat(max_tokens=110, stream=True)))
            while b"content" not in first.recv(1 << 16):
                pass
            (gate / "open").unlink()
        (gate / "open").touch()
        until(lambda: self.counts(client) == (0, 0))
        assert client.post(CHAT, json=chat()).status_code == 200

    def test_a_slow_reader_holds_no_engine(self, held):
        _, client, gate = held
        (gate / "open").touch()
        with connected(client.base_url) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(raw(chat(stream=True, n=8, max_tokens=100)))
            assert client.post(CHAT, json=chat()).status_code == 200
            text = b""
            while b"[DONE]" not in text:
                text += slow.recv(1 << 16)
        assert text.count(b'"finish_reason":"length"') == 8

    def test_the_first_signal_finishes_what_runs(self, held):
        process, client, gate = held
        with connected(client.base_url) as first, connected(client.base_url) as second:
            first.sendall(raw(chat(max_tokens=20)))
            until(lambda: calls(gate) == 1)
            second.sendall(raw(chat()))
            until(lambda: self.counts(client) == (1, 1))
            process.send_signal(signal.SIGTERM)
            text = second.recv(1 << 16)
            assert b"503 Service Unavailable" in text and b"the server is being stopped" in text
            (gate / "open").touch()
            assert b'"completion_tokens":20' in first.recv(1 << 16)
        assert process.wait(HANGING) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{client.base_url}/health", timeout=HANGING)

    def test_the_second_ends_at_once(self, held):
        process, client, gate = held
        with connected(client.base_url) as first:
            first.sendall(raw(chat()))
            until(lambda: calls(gate) == 1)
            process.send_signal(signal.SIGINT)
            until(lambda: refuses(client.base_url))
            process.send_signal(signal.SIGINT)
            assert process.wait(HANGING) == 130


def refuses(address) -> bool:
    port = int(str(address).rpartition(":")[2])
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_a_unix_socket(anebook, folder, session, tmp_path):
    path = tmp_path / "s"
    for _ in range(2):  # the second finds what is left of the first, which is killed
        with begun(anebook, folder, "--socket", str(path), port=None) as (process, place):
            assert place == str(path) and path.stat().st_mode & 0o777 == 0o600
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://localhost") as client:
                found = client.post(CHAT, json=chat(), timeout=HANGING).json()
            expected = session.generate("Hello", max_tokens=8).text
            assert found["choices"][0]["message"]["content"] == expected
            other = [*anebook, "serve", str(folder), "--executor", PIPE, "--socket", str(path)]
            done = subprocess.run(other, capture_output=True, text=True)
            assert done.returncode == 2 and "another server listens there" in done.stderr
    with begun(anebook, folder, "--socket", str(path), port=None) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGING) == 0
    assert not path.exists()


def test_a_port_that_is_taken(anebook, folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = [*anebook, "serve", str(folder), "--executor", PIPE, "--port", port]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and f"127.0.0.1:{port} cannot be listened on" in done.stderr


def test_stdin_takes_both_forms(anebook, folder, session):
    ids = session.encode("Hello")
    expected = session.generate(ids, max_tokens=5)
    lines = f'{" ".join(map(str, ids))}|5\n\n{{"prompt": "Hello", "max_tokens": 5}}\nwhat?\n'
    lines += '{"tokens": [1], "prompt": "a"}\n{"tokens": [70000]}\n{"prompt": "a", "n": 2}\n'
    command = [*anebook, "serve", str(folder), "--stdin", "--executor", PIPE]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=HANGING)
    first, second, *wrong = done.stdout.splitlines()
    assert first == " ".join(map(str, expected.token_ids)), done.stderr
    assert json.loads(second)["text"] == expected.text
    assert json.loads(second)["tokens"] == expected.token_ids
    said = [json.loads(line)["error"]["message"] for line in wrong]
    assert said[0] == "a line is JSON, or token ids like 151644 8948 198|20"
    assert said[1] == "give either tokens or a prompt"
    assert "token id 70000 is outside" in said[2] and said[3].endswith("supplied: n")
    assert done.returncode == 0
