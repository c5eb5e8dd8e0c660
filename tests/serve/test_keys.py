"""API keys with limits of their own: requests at once, and in a minute."""

import json
import os
from time import perf_counter

from _command import refused
from _gates import Held, ask, bare, chat
from _patience import HANGING, until
from _serving import serving
from ane_book.errors import InvalidInput
from ane_serve import keys
from ane_serve.app import create_app
from ane_serve.keys import Key, WrongKeys, read_keys
import httpx
import pytest

FILE = """
[editor]
key = "sesame"
running = 1

[script]
key = "barley"
minute = 2
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def test_a_minute_has_so_many_requests(models, file, monkeypatch):
    """A refusal says how long to wait, counts for nothing, and holds for its own key alone."""
    clock = [1000.0]
    with serving(*models, key="oats", keys=read_keys(file)) as address:
        monkeypatch.setattr(keys, "monotonic", lambda: clock[0])
        assert ask(address, "barley").status_code == 200
        clock[0] += 20
        assert ask(address, "barley", n=-1).status_code == 400  # it counts as well
        for _ in range(3):
            late = ask(address, "barley")
            assert late.status_code == 429 and late.headers["retry-after"] == "40"
            error = late.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert "2 requests in a minute" in error["message"]
        for shown in ("oats", "sesame"):
            assert [ask(address, shown).status_code for _ in range(3)] == [200] * 3
        shown = {"authorization": "Bearer barley"}
        assert httpx.get(f"{address}/v1/models", headers=shown, timeout=HANGING).is_success
        clock[0] += 40
        assert ask(address, "barley").status_code == 200
        assert ask(address, "barley").headers["retry-after"] == "20"
        assert ask(address, "wrong").status_code == 401


def test_so_many_requests_run_at_once(models, file):
    """A place is free again when an answer is whole, and when its client leaves."""
    held = Held(models[0])
    with serving(held.model, keys=read_keys(file)) as address:
        with bare(address, chat(), key="sesame"):
            held.wait()
            late = ask(address, "sesame")
            assert late.status_code == 429 and late.headers["retry-after"] == "1"
            assert "1 requests at once" in late.json()["error"]["message"]
        held.let()
        until(lambda: ask(address, "sesame").status_code == 200)
        assert ask(address, "sesame", stream=True).status_code == 200
        assert ask(address, "sesame").status_code == 200


def test_the_log_names_the_key(models, file, caplog):
    logger = "ane_serve.requests"
    with caplog.at_level("INFO", logger), serving(*models, keys=read_keys(file)) as address:
        ask(address, "sesame")
    (line,) = [record.msg for record in caplog.records if record.name == logger]
    assert line["key"] == "editor" and "sesame" not in json.dumps(line)


@pytest.mark.parametrize(("text", "says"), [
    ("", "has no key; write a table for each"),
    ("a = ", "is no TOML"),
    ("a = 1", r"\[a\]"),
    ("[a]", r"\[a\]: key has to be a text"),
    ('[a]\nkey = "two words"', r"\[a\]: key has to be a text"),
    ('[a]\nkey = "b"\nminute = 0', r"\[a\]: minute .* greater than or equal to 1"),
    ('[a]\nkey = "b"\nhour = 9', r"\[a\]: hour .* a key has key, running and minute"),
])  # fmt: skip
def test_a_file_that_is_wrong_is_refused_by_its_place(file, text, says):
    file.write_text(text)
    with pytest.raises(InvalidInput, match=says):
        read_keys(file)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize(("mode", "taken"), [(0o600, True), (0o640, True), (0o604, False),
                                             (0o602, False), (0o644, False)])  # fmt: skip
def test_a_file_that_others_can_read_or_write_is_refused(file, mode, taken):
    file.chmod(mode)
    if taken:
        assert len(read_keys(file)) == 2
    else:
        with pytest.raises(InvalidInput, match=r"others can get at these keys; chmod 600"):
            read_keys(file)


def test_wrong_keys_wait_the_longer_the_more_there_were(monkeypatch):
    clock, wrong = [1000.0], WrongKeys()
    monkeypatch.setattr(keys, "monotonic", lambda: clock[0])
    assert [wrong.wait() for _ in range(3)] == pytest.approx([0.2, 0.4, 0.6])
    clock[0] += 60
    assert wrong.wait() == pytest.approx(0.2)
    assert max(wrong.wait() for _ in range(1000)) == pytest.approx(keys.MOST)


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_wrong_key_waits_for_its_answer(models, file, monkeypatch, header):
    monkeypatch.setattr(keys, "STEP", 0.3)
    with serving(*models, keys=read_keys(file)) as address:
        for step in (1, 2):
            start = perf_counter()
            found = httpx.get(f"{address}/v1/models", headers={header: "Bearer wrong"})
            assert found.status_code == 401 and perf_counter() - start >= 0.3 * step


def test_nobody_else_waits_and_who_leaves_keeps_nothing(models, file, monkeypatch):
    """A server stops only when all its answers are done."""
    monkeypatch.setattr(keys, "STEP", 2 * HANGING)
    with serving(*models, keys=read_keys(file)) as address:
        with bare(address, chat(), key="wrong"):
            assert ask(address, "sesame").status_code == 200
            assert httpx.get(f"{address}/v1/models").status_code == 401  # it shows none
        assert ask(address, "sesame").status_code == 200


def test_two_names_of_one_key_are_refused(models):
    same = [Key("a", "sesame"), Key("b", "sesame")]
    with pytest.raises(InvalidInput, match="a and b have the same API key"):
        create_app(list(models), keys=same)


def test_the_command_reads_the_file_and_opens_other_addresses_with_it(talker, file):
    folder = str(talker.path)
    assert "--api-keys" in refused("serve", folder, "--host", "0.0.0.0")
    missing = refused("serve", folder, "--host", "0.0.0.0", "--api-keys", "nowhere.toml")
    assert "nowhere.toml cannot be read: No such file" in missing
