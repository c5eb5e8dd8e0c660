"""What a socket of `anebook serve` may say, who waits, who leaves, and how the server ends."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
import json
import os
from pathlib import Path
import re
import resource
import signal
import socket
import subprocess
import sys
import time

from _anebook import CHAT, PIPE, TEXT, begun, chat
from _patience import HANGING, until
import httpx
import pytest

pytest_plugins = ["_talker"]

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


@pytest.fixture
def held(anebook, folder, tmp_path):
    """A server whose engine stands still: its process, its client, and the gate's folder."""
    (tmp_path / "gated.py").write_text(GATED)
    gate = tmp_path / "gate"
    gate.mkdir()
    executor = f"{sys.executable} {tmp_path / 'gated.py'} {gate}"
    with (
        begun(anebook, folder, executor=executor) as (process, address),
        httpx.Client(base_url=address, timeout=HANGING) as client,
    ):
        yield process, client, gate


def calls(gate) -> int:
    path = gate / "calls"
    return path.stat().st_size if path.exists() else 0


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
                until(lambda: swift.get("/health").json()["running"] == 0)  # nor the last answer
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
        _, client, gate = held
        with ThreadPoolExecutor(33) as pool:
            asked = [
                pool.submit(
                    httpx.post,
                    str(client.base_url) + CHAT,
                    json=chat(max_tokens=i % 4 + 1),
                    timeout=HANGING,
                )
                for i in range(33)
            ]
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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_without_descriptors_it_waits_for_one(anebook, folder):
    """It neither works nor ends while there is none, and answers once there is one again."""
    with begun(anebook, folder) as (process, address), ExitStack() as others:
        process_files = Path(f"/proc/{process.pid}")

        def seconds() -> float:
            fields = (process_files / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        most = len(list((process_files / "fd").iterdir())) + 3
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
        for _ in range(8):
            others.enter_context(connected(address))
        until(lambda: len(list((process_files / "fd").iterdir())) == most)
        start = seconds()
        time.sleep(1)
        assert seconds() - start < 0.3
        others.close()
        assert httpx.get(f"{address}/health", timeout=HANGING).status_code == 200


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
