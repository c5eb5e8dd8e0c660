"""`ane-book bench`: in process, and beside a real server of another kind; what bad servers do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
import json
from math import inf
import re
import shutil
import socket
import subprocess
from threading import Thread
import time

from _command import ane_book, chatty_copy, refused
from _patience import guarded
from _smollm2_tokenizer import smollm2
from _smollm2_tokenizer import tokenizer as tokenizer_in_this_process
from _transformers_server import MODEL, served, transformers_app
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from ane_book.text.process import TextProcess
from ane_serve.bench import PROMPTS, InProcess, Prompt, Server, TimedAnswer, cold_start, measure
from ane_serve.bench.client import ServerError
from ane_serve.bench.report import BenchReport, BenchSubject
from fastapi import FastAPI
import pytest

#: For a tiny model, whose tokens are bytes.
SHORT = (Prompt("one", "Hi", 6), Prompt("two", "you there", 9))
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
PIECE = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
END = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


@pytest.fixture(scope="module")
def bundle(tiny_bundle, tmp_path_factory) -> tuple:
    """A model of `transformers`, and its bundle with a chat template that never ends an answer."""
    model, bundle = tiny_bundle("llama", kv="state", context=128)
    folder = tmp_path_factory.mktemp("chatty")
    return model, chatty_copy(bundle.path, folder, eos_token_ids=[])


@pytest.fixture(scope="module")
def peer(bundle):
    model, path = bundle
    with served(transformers_app(model, path / "tokenizer.json", TEMPLATE, [])) as url:
        yield url


class TestBesideAnother:
    def test_the_same_prompts_get_the_same_answers_from_both(self, bundle, peer):
        ours = InProcess(Session(bundle[1], "fp32", "mil"))
        report = measure([ours, Server(peer)], SHORT, repeats=2, mark=998)
        here, there = report.subjects
        for prompt in SHORT:
            pairs = [*zip(here.answers[prompt.name], there.answers[prompt.name], strict=True)]
            assert len(pairs) == 2
            for a, b in pairs:
                assert a.text == b.text and a.tokens == b.tokens == prompt.max_tokens
                assert a.prompt_tokens == b.prompt_tokens
            # Each repeat begins otherwise: nothing of it can be looked up.
            assert pairs[0][0].text != pairs[1][0].text

    def test_figures_are_made_of_what_was_seen(self, bundle, peer):
        report = measure([Server(peer)], SHORT[:1], repeats=3)
        facts = json.loads(json.dumps(report.to_json()))["subjects"][0]
        assert facts["name"].startswith(f"{MODEL} at 127.0.0.1:")
        row, answers = facts["prompts"]["one"], report.subjects[0].answers["one"]
        middle = sorted(answers, key=lambda answer: answer.total_s)[1]
        assert row["latency_ms"] == pytest.approx(1e3 * middle.total_s)
        assert row["output_tokens"] == 6 and 0 < row["first_ms"] < row["latency_ms"]
        assert facts["cold_start_s"] is None and facts["own"] == {"prefill": None, "decode": None}

    def test_the_command_prints_both_and_their_ratios(self, bundle, peer):
        short = "--only", "tiny", "--repeats", "1", "--precision", "fp32"
        done = ane_book("bench", bundle[1], "--url", f"{MODEL}={peer}", *short, "--json")
        found = json.loads(done.stdout)
        ours, theirs = found["subjects"]
        assert ours["where"] == "in this process" and theirs["where"] == peer
        assert ours["cold_start_s"] is not None and theirs["cold_start_s"] is None
        assert ours["prompts"].keys() == {"tiny"} and ours["own"]["decode"] > 0
        (ratios,) = found["ratios"].values()
        assert ratios["tiny"].keys() == {"prefill_tps", "decode_tps", "latency"}

    def test_its_own_server_says_what_it_measured(self):
        told = {"usage": {"prompt_tokens": 9, "completion_tokens": 2,
                          "prompt_tokens_details": {"cached_tokens": 4}},
                "timings": {"prompt_per_second": 100.0, "predicted_per_second": 50}}  # fmt: skip
        with saying(OK + PIECE * 2 + f"data: {json.dumps(told)}\n\n".encode() + END) as url:
            answer = Server(url, "m").ask(SHORT[0], 0, 2, {})
        assert (answer.prompt_tokens, answer.tokens, answer.cached) == (9, 2, 4)
        assert answer.own == {"prefill": 100.0, "decode": 50.0}
        assert answer.prefill_tps == pytest.approx(5 / answer.first_s)

    def test_without_a_count_pieces_are_counted(self):
        with saying(OK + PIECE * 3 + END) as url:
            answer = Server(url, "m").ask(SHORT[0], 0, 3, {})
        assert (answer.text, answer.tokens, answer.prompt_tokens) == ("aaa", 3, None)
        assert answer.prefill_tps is None


def test_the_prompts_are_as_long_as_the_source_s():
    tokenizer, words = smollm2(), tokenizer_in_this_process()
    template = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    tokens = {}
    for prompt in PROMPTS:
        text = TextProcess().render(tokenizer.chat_template, prompt.messages(482), **template)
        tokens[prompt.name] = len(words.encode(text, add_special_tokens=False).ids)
    source = {"tiny": 23, "short": 29, "medium": 33, "long": 36, "stress": 122}
    assert tokens == {name: pytest.approx(count, abs=3) for name, count in source.items()}


class TestReport:
    def test_medians_ratios_and_what_is_unmeasured(self):
        fast, slow = (
            BenchSubject(name, "here", {"p": [TimedAnswer("x", 10, 5, s, 3 * s, 5) for s in took]})
            for name, took in (("fast", (1.0, 2.0, 4.0)), ("slow", (2.0, 6.0, 40.0)))
        )
        report = BenchReport([fast, slow], 3, {"temperature": 0.0})
        # By pairs, as they took turns: 2, 3 and 10 times as fast.
        assert report.ratios(slow) == {"p": {"prefill_tps": 3.0, "decode_tps": 3.0, "latency": 3.0}}
        row = report.to_json()["subjects"][0]["prompts"]["p"]
        assert (row["prefill_tps"], row["decode_tps"], row["latency_ms"]) == (5.0, 1.0, 6000.0)
        assert "Cold start: unmeasured" in report.text()
        assert "decode 0.5 to 2.0 t/s, a spread of 150%" in report.text()
        rows = re.findall("^(?:Prompt|p|Average|Ratio) .*$", report.text(), re.M)
        assert len(rows) == 8 and max(map(len, rows)) <= 80

    def test_an_answer_without_a_token_has_no_rate(self):
        for tokens in (0, 1):
            assert TimedAnswer("", 3, tokens, 0.5, 0.5, tokens).decode_tps is None
        held_back = TimedAnswer("x" * 10, 3, 10, 0.5, 0.50001, 1)  # and sent at once
        assert held_back.decode_tps is None and held_back.prefill_tps == 6
        empty = BenchSubject("n", "w", {"p": [TimedAnswer("", None, None, 0.5, 0.5, 0)]})
        report = BenchReport([empty], 1, {})
        assert inf not in report.to_json()["subjects"][0]["prompts"]["p"].values()
        assert re.search(r"p +- +- +- +- +500 +500", report.text())

    def test_two_of_one_name_are_refused(self):
        with pytest.raises(InvalidInput, match="to be told apart"):
            measure([Server("http://a", "m")] * 2, SHORT)


@contextmanager
def answering(
    answer: Callable[[socket.socket], None], seen: list[bytes] | None = None
) -> Iterator[str]:
    """A server that reads a request and then does as it likes, one connection after another."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # whoever asked has left
                    request = _request(connection)
                    if seen is not None:
                        seen.append(request)
                    answer(connection)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _request(connection: socket.socket) -> bytes:
    """The head of a request, and its body as far as it has one."""
    read = b""
    while b"\r\n\r\n" not in read and (more := connection.recv(1 << 16)):
        read += more
        if not read.startswith((b"GET ", b"POST ")):  # not HTTP, so nobody knows its end
            return read
    head, _, body = read.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    while length and len(body) < int(length[1]) and (more := connection.recv(1 << 16)):
        body += more
    return head + b"\r\n\r\n" + body


def saying(whatever: bytes):
    return answering(lambda connection: connection.sendall(whatever))


class TestBadServers:
    @pytest.mark.parametrize(
        ("sent", "said"),
        [
            (b"", "does not speak HTTP"),
            (b"\x00\xff nonsense\r\n\r\n", "does not speak HTTP"),
            (b"HTTP/1.1 500 Oops\r\n\r\n", "status 500: Oops"),
            (b'HTTP/1.1 401 No\r\n\r\n{"error": {"message": "a key, please"}}',
             "status 401: a key, please; ANE_BOOK_API_KEY"),
            (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere\r\n\r\n", "status 302"),
            (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>", "did not stream"),
            (OK, "closed the stream before the end"),
            (OK + PIECE, "closed the stream before the end"),
            (OK + b"data: {nonsense\n\n", "did not answer with a JSON object"),
            (OK + b"data: " + b"[" * 5000 + b"\n\n", "did not answer with a JSON object"),
            (OK + b"data: [1]\n\n", "did not answer with a JSON object"),
            (OK + b'data: {"choices": [7]}\n\n', "choices are no objects"),
            (OK + b'data: {"error": {"message": "out of \x1b[2J memory"}}\n\n', "out of"),
            (OK + b"x" * (1 << 21), "bytes for one answer"),
            (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
             b"\r\nffff\r\nshort", "closed the stream before the end"),
        ],
    )  # fmt: skip
    def test_is_told_in_one_line_with_its_url(self, sent, said):
        with saying(sent) as url, pytest.raises(ServerError, match=said) as error:
            Server(url, "m").ask(SHORT[0], 0, 2, {})
        assert str(error.value).startswith(f"{url}: ") and "\x1b" not in str(error.value)

    @pytest.mark.parametrize("first", [OK[:20], OK + PIECE])
    def test_one_that_drips_is_left_at_its_time(self, first):
        def drip(connection) -> None:
            connection.sendall(first)
            while True:
                time.sleep(0.05)
                connection.sendall(b"x")

        late = pytest.raises(ServerError, match="no whole answer within 0.5 s; --timeout")
        with answering(drip) as url, guarded(), late:
            Server(url, "m", timeout=0.5).ask(SHORT[0], 0, 2, {})

    def test_nobody_there(self):
        with answering(lambda connection: None) as url:
            pass
        assert f"{url}: nothing listens there" in refused("bench", "--url", url)

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
    def test_a_certificate_of_nobody(self, tmp_path):
        """One that its owner has signed."""
        key, own = tmp_path / "key.pem", tmp_path / "own.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
                   "-subj", "/CN=localhost", "-keyout", key, "-out", own]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        with served(FastAPI(), ssl_keyfile=key, ssl_certfile=own) as url:
            with pytest.raises(ServerError, match="certificate is not one to trust"):
                Server(url)
            with pytest.raises(ServerError, match="does not speak HTTP|reset"):
                Server(url.replace("https", "http"))
        plain = b"HTTP/1.1 200 OK\r\n\r\n"
        with saying(plain) as url, pytest.raises(ServerError, match="does not speak TLS"):
            Server(url.replace("http", "https"))

    @pytest.mark.parametrize(
        ("models", "said"),
        [
            ({"data": [{"id": "a"}, {"id": "b"}]}, "it has a, b; name one: NAME=http"),
            ({"data": []}, "it names none"),
            ({"data": 7}, "it names none"),
            ({"models": [{}]}, "it names none"),
        ],
    )
    def test_a_model_has_to_be_known(self, models, said):
        body = b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(models).encode()
        with saying(body) as url, pytest.raises(ServerError, match=said):
            Server(url)

    @pytest.mark.parametrize(
        "url", ["localhost:1234", "ftp://a/v1", "http://", "http://a:99999/v1", "http://u:p@a/v1"]
    )
    def test_what_is_no_url(self, url):
        with pytest.raises(InvalidInput):
            Server(url, "m")

    def test_a_key_goes_along_and_is_text(self):
        seen = []
        with answering(lambda connection: connection.sendall(OK + PIECE + END), seen) as url:
            Server(url, "m", key="k-1").ask(SHORT[0], 3, 2, {"temperature": 0.0})
            with pytest.raises(InvalidInput, match="printable ASCII"):
                Server(url, "m", key="k\r\nHost: b")
        head, _, body = seen[0].partition(b"\r\n\r\n")
        assert b"Authorization: Bearer k-1" in head
        assert head.startswith(b"POST /v1/chat/completions")
        sent = json.loads(body)
        assert sent["stream"] and sent["stream_options"] == {"include_usage": True}
        assert (sent["temperature"], sent["max_tokens"]) == (0.0, 2)
        assert sent["messages"][0]["content"].startswith("003.")


def test_a_cold_start_that_fails_or_takes_too_long_is_told(tmp_path):
    with pytest.raises(InvalidInput, match="ended with 2: error: .*no such file or folder"):
        cold_start(tmp_path / "nothing", [])
    with pytest.raises(InvalidInput, match="within 0 s; --no-cold"):
        cold_start(tmp_path / "nothing", [], timeout=0.01)
