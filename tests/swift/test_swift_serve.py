"""`anebook serve` held to the Python server: the same requests to both, over real sockets."""

from concurrent.futures import ThreadPoolExecutor
import json
import re
import socket
import subprocess

from _anebook import CHAT, HELLO, PIPE, TEXT, chat
from _patience import HANGING
from ane_serve.app import create_app
from ane_serve.pool import bundle_model
import httpx
import pytest
from starlette.testclient import TestClient

pytest_plugins = ["_talker"]


@pytest.fixture(scope="module")
def python(talker):
    """The Python server."""
    with TestClient(create_app([bundle_model(talker)]), base_url="http://localhost") as client:
        yield client


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
                {"messages": [{"content": "Hi"}]}, {"messages": [1]},
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                {"messages": [{"role": "user", "content": "x" * 200}]}, {"temperature": -1},
                {"temperature": 3}, {"temperature": "hot"}, {"temperature": True},
                {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": "5"}, {"n": 1000},
                {"colour": "red"}, {"stop": 7}, {"stop": ["a"] * 17}, {"stop": [1]},
                {"top_k": 0}, {"top_p": 1.5}, {"seed": "x"}, {"seed": 2**63},
                {"seed": -(2**63) - 1}, {"seed": 10**30}, {"n": 2**64},
                {"max_tokens": -(2**64)}, {"temperature": 2**64},
                {"messages": [{"role": "user", "content": "Hi", "colour": "red"}]},
            )),
            *((TEXT, fields) for fields in (
                {}, [], None, 1, {"prompt": []}, {"prompt": [1, 9999]},
                {"prompt": [""]}, {"prompt": [-1]}, {"prompt": ["a", 1]}, {"prompt": [[]]},
                {"prompt": 1},
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
            says["message"] = says["message"].replace(" (`ane-book convert --context`)", "")
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
