"""`ane-book serve` in a process of its own: its README's lines, its socket, its ways to end."""

import contextlib
import io
import json
from pathlib import Path
import re
import shutil
import signal
import socket
import subprocess
import sys

from _command import ane_book, refused, start
from _gates import bare, chat, until
from _patience import HANGING
from ane_book.runtime import Session
from ane_serve.cli import GONE
import httpx
import pytest

README = (Path(__file__).parents[2] / "ane_serve" / "README.md").read_text(encoding="utf-8")
NAME = "smollm2-135m-instruct"  # what README asks; here a tiny model has it
LONG = chat(stream=True, n=16, max_tokens=100)


@pytest.fixture
def begin(talker, tmp_path):
    """`begin(*arguments)` -> (process, address), ended with the test."""
    running = []

    def begin(*arguments: str, port: int = 0) -> tuple[subprocess.Popen, str]:
        model = f"{NAME}={talker.path}"
        process = start("serve", model, "--port", str(port), "--precision", "fp32", *arguments)
        running.append(process)
        line = "{}"
        while line.startswith("{"):  # what is written before it listens
            line = process.stderr.readline()
        found = re.fullmatch(rf"serving {NAME} at (http://127.0.0.1:\d+)/v1\n", line)
        assert found, line + process.stderr.read()
        return process, found[1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def code(language: str, begin: str) -> str:
    return re.search(rf"^```{language}\n({begin}.*?)^```$", README, re.M | re.S)[1]


def ask_socket(path: Path, *lines: str, close: bool = True) -> list[dict]:
    """What comes back for lines, of a client that says when it has sent all, as `nc -U`."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(HANGING)
        client.connect(str(path))
        client.sendall("\n".join(lines).encode() + b"\n")
        if close:
            client.shutdown(socket.SHUT_WR)
        with client.makefile() as answers:
            return [json.loads(answers.readline()) for _ in lines]


def test_readmes_lines_and_the_socket_and_a_graceful_end(begin, talker, tmp_path):
    path = tmp_path / "s"
    process, address = begin("--socket", str(path))
    session = Session(talker, precision="fp32")

    if shutil.which("curl"):
        curl = ["sh", "-c", code("bash", "curl").replace("http://localhost:8000", address)]
        found = json.loads(subprocess.run(curl, capture_output=True, check=True).stdout)
        expected = session.generate("What is 2+2?", max_tokens=50)
        assert (found["text"], found["gen_tokens"]) == (expected.text, 50)
        assert found["prompt_tokens"] == expected.prompt_tokens

    for client, most in (("openai", 10_000), ("anthropic", 20)):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code("python", f"from {client}").replace("http://localhost:8000", address), {})
        expected = session.generate("What is the capital of France?", max_tokens=most)
        assert said.getvalue() == expected.text

    ids = session.encode("Hello")
    expected = session.generate(ids, max_tokens=5)
    by_ids, by_text, wrong = ask_socket(
        path,
        json.dumps({"tokens": ids, "max_tokens": 5}),
        json.dumps({"prompt": "Hello", "max_tokens": 5}),
        json.dumps({"tokens": [70_000]}),
    )
    assert by_ids["tokens"] == by_text["tokens"] == expected.token_ids
    assert (by_ids["text"], by_ids["gen_tokens"]) == (expected.text, 5)
    assert "token id 70000 is outside" in wrong["error"]["message"]
    assert path.stat().st_mode & 0o777 == 0o600

    with bare(address, LONG) as client:
        text = client.recv(1 << 16)
        assert b"200 OK" in text
        process.send_signal(signal.SIGTERM)
        while part := client.recv(1 << 16):
            text += part
        assert text.count(b'"finish_reason":"length"') == 16 and b"[DONE]" in text
    assert process.wait(HANGING) == 0
    assert not path.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health", timeout=HANGING)
    lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert not [line for line in lines if "France" in json.dumps(line) or "2+2" in json.dumps(line)]
    asked = [line for line in lines if line.get("path") == "/v1/chat/completions"]
    assert [line["completion_tokens"] for line in asked][-1] == 1600
    assert asked[0]["model"] == NAME and asked[0]["queue_s"] <= asked[0]["first_s"]


def test_after_a_kill_it_starts_again_and_a_second_signal_ends_at_once(begin, tmp_path):
    path = tmp_path / "s"
    process, address = begin("--socket", str(path))
    with bare(address, LONG) as client:
        assert client.recv(1 << 16)
        process.kill()
        process.wait(HANGING)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass
    assert path.exists()
    process, again = begin("--socket", str(path), port=int(address.rpartition(":")[2]))
    assert again == address
    assert ask_socket(path, '{"prompt": "Hello", "max_tokens": 2}')[0]["gen_tokens"] == 2
    with bare(address, LONG) as client:
        assert client.recv(1 << 16)
        process.send_signal(signal.SIGTERM)
        until(lambda: not path.exists())  # it has begun to stop; what runs goes on
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGING) == 130


def test_stdin_takes_both_forms(talker):
    session = Session(talker, precision="fp32")
    ids = session.encode("Hello")
    expected = session.generate(ids, max_tokens=5)
    lines = f'{" ".join(map(str, ids))}|5\n\n{{"prompt": "Hello", "max_tokens": 5}}\nwhat?\n'
    done = ane_book("serve", talker.path, "--stdin", "--precision", "fp32", input=lines)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == " ".join(map(str, expected.token_ids)), done.stderr
    assert json.loads(second)["text"] == expected.text
    assert "token ids like" in json.loads(third)["error"]["message"]
    assert done.returncode == 0


@pytest.mark.long
def test_a_model_on_a_cluster_of_two_nodes(begin, talker):
    pytest.importorskip("ray", reason="needs the extra [cluster]")
    process, address = begin("--cluster", "local:2")
    expected = Session(talker, precision="fp32").generate("Hello", max_tokens=12)
    found = httpx.post(f"{address}/v1/chat/completions", json=chat(max_tokens=12), timeout=HANGING)
    assert found.json()["choices"][0]["message"]["content"] == expected.text
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANGING)
    assert process.returncode == 0


@pytest.mark.parametrize(("words", "instead"), GONE.items())
def test_an_option_that_is_gone_names_what_takes_its_place(words, instead):
    assert refused(*words.split(), "x") == f"error: {words} is gone: {instead}"


class TestRefusedAtTheStart:
    def test_without_what_it_is_made_of(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "fastapi", None)
        said = refused("serve", "nothing")
        assert said.startswith("error: to serve, run `") and said.endswith("; fastapi is missing")

    def test_a_model_by_a_path_that_is_none(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert f"there is no such file or folder; did you mean {NAME}" in refused(
            "serve", f"./{NAME}"
        )

    @pytest.mark.parametrize("key", ["", " ", "two words", "zażółć"])
    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
    def test_a_key_that_nobody_could_show(self, talker, host, key, monkeypatch):
        """An empty one would also put off the check of names."""
        monkeypatch.setenv("ANE_BOOK_API_KEY", key)
        said = refused("serve", str(talker.path), "--host", host)
        assert "the API key in ANE_BOOK_API_KEY is empty, or has other signs" in said

    def test_a_port_that_is_taken(self, talker):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            said = refused("serve", talker.path, "--port", port)
        assert f":{port} cannot be listened on" in said

    @pytest.mark.parametrize("seconds", ["inf", "1e400"])
    def test_a_limit_without_end(self, seconds):
        done = ane_book("serve", "nothing", "--timeout", seconds)
        assert done.returncode == 2 and "less than or equal to 1000000" in done.stderr

    @pytest.mark.parametrize(("options", "says"), [
        ("MODEL --host 0.0.0.0", "give an API key"),
        ("MODEL --cors example.org", "--cors example.org"),
        ("MODEL --cors http://", "http://localhost:3000"),
        ("MODEL --cors https://example.org/page", "--cors https://example.org/page"),
        ("MODEL MODEL", "give each a name of its own, such as"),
        ("MODEL --memory 1KB", "bytes, more than the limit of 1,000 (--memory)"),
        ("MODEL --memory many", "'many' is not a size"),
        (f"MODEL --memory {'9' * 400}", "error:"),
        ("MODEL --stdin --socket s", "leave --socket out"),
        ("x=", "x= names no model; write x=MODEL"),
        ("nothing", "nothing"),
        # Before a model is looked at, or converted.
        ("nothing --backend coreml --precision fp32", "'fp32' needs the \"mil\" backend"),
        ("nothing --socket nowhere/s", "there is no folder nowhere"),
        ("all-minilm-l6-v2 --stdin", "--stdin takes one model, which generates text"),
        ("all-minilm-l6-v2 --socket s", "--socket takes a model that generates text"),
    ])  # fmt: skip
    def test_what_will_not_do(self, talker, options, says):
        assert says in refused("serve", *options.replace("MODEL", str(talker.path)).split())
