"""Conversations' caches in memory and on disk: what is kept, for whom, and that answers stay."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
import logging
import os
from pathlib import Path
import random
import re
import resource
import signal
import socket
import subprocess
import sys
from threading import Event

from _command import chatty_copy, end, refused, start
from _gates import CHAT, chat
from _long import long_but
from _patience import HANGING, until
from _serving import serving
from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from ane_serve.app import create_app
from ane_serve.generation import Ask, Finished, ServedSession, answers
from ane_serve.keys import Key
from ane_serve.pool import bundle_model
from ane_serve.server import run
from ane_serve.slots import Slots, whose
import httpx
from mlprogram.files import written_whole
import numpy as np
import pytest

T = 16  # tokens of a prefill call
MINE = whose("mine", "a model")


def cache(number: int, size: int = 1000) -> dict[str, np.ndarray]:
    """Arrays of so many bytes, each of which has the number."""
    return {"0.keys": np.full(size, number, np.uint8)}


def found(slots: Slots, ids: list[int], own=MINE, held: int = 0, goes_back: bool = True):
    """Which cache has most of these tokens, and how many; None for none."""
    got = slots.find(own, ids, held, T, goes_back)
    return got and (int(got.arrays["0.keys"][0]), got.usable)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def filled(folder: Path | None, limit: int = 10_000, most: int = 4) -> Slots:
    """Slots with caches 0 to 5, each of 32 tokens of its number."""
    slots = Slots(most, limit, folder)
    for number in range(6):
        slots.put(MINE, [number] * 2 * T, cache(number))
    return slots


def has(slots: Slots) -> list[int]:
    return [number for number in range(6) if found(slots, [number] * 40) is not None]


class TestPolicy:
    @pytest.mark.parametrize(("most", "limit", "kept"), [
        (4, 10_000, [2, 3, 4, 5]),
        (1, 10_000, [5]),
        (4, 3_000, [3, 4, 5]),
        (4, 999, []),
        (0, 10_000, []),
    ])  # fmt: skip
    def test_memory_has_the_last_ones_within_both_limits(self, most, limit, kept):
        slots = filled(None, limit, most)
        assert slots.bytes == {"memory": 1000 * len(kept), "disk": 0}
        assert has(slots) == kept

    def test_what_was_used_stays(self):
        slots = filled(None)
        assert found(slots, [2] * 40) == (2, 32)
        assert slots.has(MINE, [3] * T, True)
        for number in (6, 7):
            slots.put(MINE, [number] * T, cache(number))
        assert has(slots) == [2, 3]

    @pytest.mark.parametrize(("ids", "held", "goes_back", "expected"), [
        ([1] * 40, 0, True, (7, 32)),
        ([1] * 40, 16, True, (7, 32)),
        ([1] * 40, 32, True, None),  # the session has as many itself
        ([1] * 31, 0, True, (7, 16)),  # whole calls
        ([1] * 31, 0, False, None),  # whole caches
        ([1] * 20 + [9] * 20, 0, True, (7, 16)),
        ([1] * 15 + [9] * 20, 0, True, None),
        ([1] * 32 + [9] * 20, 0, False, (1, 32)),
        ([1] * 32 + [2] * 32, 0, True, (7, 48)),  # the longest
        ([1] * 32 + [2] * 32, 0, False, (7, 48)),
    ])  # fmt: skip
    def test_the_one_with_most_of_the_tokens_serves(self, ids, held, goes_back, expected):
        slots = Slots(4, 10_000)
        slots.put(MINE, [1] * 32 + [2] * 16, cache(7))
        slots.put(MINE, [1] * 32, cache(1))
        assert found(slots, ids, held=held, goes_back=goes_back) == expected

    def test_a_longer_one_takes_the_place_of_what_it_goes_on_from(self, tmp_path):
        slots = Slots(4, 10_000, tmp_path / "kept")
        for turn in range(1, 5):
            slots.put(MINE, [1] * T * turn, cache(turn))
        assert slots.bytes["memory"] == 1000 and len(files(tmp_path)) == 1
        assert slots.has(MINE, [1] * 3 * T, True) and not slots.has(MINE, [1] * 3 * T, False)

    @pytest.mark.parametrize("other", [
        whose("yours", "a model"), whose(None, "a model"), whose("no-key", "a model"),
        whose("", "a model"), whose("mine", "another"), whose("mine", "a", "model"),
    ])  # fmt: skip
    def test_nobody_else_gets_it(self, tmp_path, other):
        for folder in (None, tmp_path / "kept"):
            slots = filled(folder)
            assert found(slots, [5] * 40, other) is None and not slots.has(other, [5] * T, True)
            slots.put(other, [5] * T * 3, cache(9))
            assert found(slots, [5] * 80) == (5, 32)

    def test_hits_are_counted_by_place(self, tmp_path):
        slots = filled(tmp_path / "kept", most=1)
        for ids, held in (([5] * 40, 0), ([4] * 20, 0), ([5] * 40, 32), ([9] * 40, 0)):
            found(slots, ids, held=held)
        assert slots.hits == {"memory": 1, "disk": 1, "session": 1}
        assert slots.tokens == {"memory": 32, "disk": 16, "session": 32}


def shaped(data: bytes, tokens: bytes) -> bytes:
    """A file whose 32 tokens are said to have another type and shape."""
    start, *rest = data[8:].partition(b'"I64","shape":[32]')
    size = int.from_bytes(data[:8], "little") + len(tokens) - len(rest[0])
    return size.to_bytes(8, "little") + start + tokens + rest[1]


class TestDisk:
    def test_a_restart_loses_none(self, tmp_path):
        folder = tmp_path / "a" / "kept"
        slots = filled(folder)
        sizes = slots.bytes
        slots.close()
        slots = Slots(0, 10_000, folder)
        assert slots.bytes == {"memory": 0, "disk": sizes["disk"]}
        assert has(slots) == [0, 1, 2, 3, 4, 5]

    def test_the_limit_holds_and_the_last_used_stay(self, tmp_path):
        folder = tmp_path / "kept"
        slots = filled(folder)
        size = slots.bytes["disk"] // 6
        assert found(slots, [0] * 40) == (0, 32)
        slots.close()
        slots = Slots(0, 3 * size, folder)
        assert slots.bytes["disk"] == sum(path.stat().st_size for path in files(folder)) == 3 * size
        assert has(slots) == [0, 4, 5]
        slots.put(MINE, [7] * T, cache(7))
        assert len(files(folder)) == 3 and slots.bytes["disk"] <= 3 * size
        slots.put(MINE, [8] * T, cache(8, 5 * size))
        assert len(files(folder)) == 3 and found(slots, [8] * 40) is None

    def test_files_are_for_their_owner_alone_and_names_say_nothing(self, tmp_path):
        folder = tmp_path / "kept"
        before = os.umask(0)
        try:
            slots = Slots(1, 10_000, folder)
            for key in ("../../mine", "MINE/x", None):
                slots.put(whose(key, "model/../.."), [77] * T, cache(1))
        finally:
            os.umask(before)
        paths = [folder, *folder.rglob("*")]
        assert {oct(path.stat().st_mode & 0o777) for path in paths if path.is_dir()} == {"0o700"}
        assert {oct(path.stat().st_mode & 0o777) for path in paths if path.is_file()} == {"0o600"}
        assert len(files(folder)) == 3 == len([path for path in folder.iterdir() if path.is_dir()])
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
        assert not [path for path in paths[1:] if "mine" in str(path).lower().replace("kept", "")]

    @pytest.mark.parametrize("damage", [
        lambda path, data: path.write_bytes(b""),
        lambda path, data: path.write_bytes(b"x" * 100),
        lambda path, data: path.write_bytes(data[:-1]),
        lambda path, data: path.write_bytes(data + b"x"),
        lambda path, data: path.write_bytes(data[:-1] + bytes([data[-1] ^ 1])),
        lambda path, data: path.write_bytes(b"\xff" * 8 + data[8:]),
        lambda path, data: path.write_bytes(data.replace(b'"tokens"', b'"tokenz"')),
        lambda path, data: path.write_bytes(data.replace(b'"I64"', b'"F16"')),
        lambda path, data: path.write_bytes(shaped(data, b'"I64","shape":[4,8]')),
        lambda path, data: path.write_bytes(shaped(data, b'"BF16","shape":[128]')),
    ], ids=[
        "empty", "other", "cut", "longer", "bit", "length", "name", "type", "shape", "bfloat",
    ])  # fmt: skip
    @pytest.mark.parametrize("started", [False, True])
    def test_a_damaged_file_is_dropped_with_a_line(self, tmp_path, caplog, damage, started):
        folder = tmp_path / "kept"
        slots = filled(folder, most=0)
        (path,) = [each for each in files(folder) if b"\x03" * 1000 in each.read_bytes()]
        if not started:
            slots.close()
        damage(path, path.read_bytes())
        if not started:
            slots = Slots(0, 10_000, folder)
        with caplog.at_level(logging.WARNING, "ane_serve"):
            assert has(slots) == [0, 1, 2, 4, 5]
            assert found(slots, [3] * 40) is None
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"dropped the damaged cache {path}: ") and "\n" not in line
        assert not path.exists()
        assert slots.bytes["disk"] == sum(each.stat().st_size for each in files(folder))

    def test_what_a_killed_server_had_begun_is_removed(self, tmp_path):
        folder = tmp_path / "kept"
        filled(folder).close()
        (own,) = [path for path in folder.iterdir() if path.is_dir()]
        for name in ("0-1.safetensors.77.part", "notes.txt"):
            (own / name).write_bytes(b"x")
        slots = Slots(0, 10_000, folder)
        assert has(slots) == [0, 1, 2, 3, 4, 5]
        assert [path.name for path in files(folder) if path.suffix != ".safetensors"] == [
            "notes.txt"
        ]

    @pytest.mark.parametrize("put", [
        os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
    ], ids=["pipe", "folder", "device", "loop"])  # fmt: skip
    def test_what_is_no_file_is_left_alone(self, tmp_path, put):
        """Nor does a pipe hold up the server, which begins with a folder's files."""
        filled(tmp_path / "kept").close()
        path = files(tmp_path)[0]
        path.unlink()
        put(path)
        (path.parent / "a.part").mkdir()
        assert len(has(Slots(0, 10_000, tmp_path / "kept"))) == 5 and path.lstat()

    @pytest.mark.parametrize("full", [True, False])
    def test_a_disk_that_takes_nothing_is_said_once(self, tmp_path, caplog, full):
        """By a limit on the size of files, and by a file where a folder has to be."""
        slots = Slots(4, 10_000, tmp_path / "kept")
        former = resource.getrlimit(resource.RLIMIT_FSIZE)
        if full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, former[1]))
        else:
            (tmp_path / "kept" / MINE.folder).write_bytes(b"")
        try:
            with caplog.at_level(logging.WARNING, "ane_serve"):
                for turn in (1, 2):
                    for number in (1, 2):
                        slots.put(MINE, [number] * T * turn, cache(number))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, former)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith("a cache is in memory alone, and others may follow it: ")
        assert ("No space" if full else "File exists") in line
        assert has(slots) == [1, 2] and slots.bytes == {"memory": 2000, "disk": 0}
        if full:
            assert files(tmp_path) == []
            slots.put(MINE, [1] * T * 3, cache(1))
            assert len(files(tmp_path)) == 1

    def test_a_disk_that_is_full_again_keeps_what_it_has(self, tmp_path):
        """The longer cache is in memory alone; what it goes on from stays for a later server."""
        folder, former = tmp_path / "kept", resource.getrlimit(resource.RLIMIT_FSIZE)
        slots = filled(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, former[1]))
        try:
            slots.put(MINE, [5] * T * 3, cache(5))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, former)
        assert found(slots, [5] * 80) == (5, 48)
        slots.close()
        assert found(Slots(0, 10_000, folder), [5] * 80) == (5, 32)


class TestFolder:
    def test_a_second_server_is_refused_until_the_first_is_gone(self, tmp_path):
        """However it goes."""
        folder = tmp_path / "kept"
        held = "from ane_serve.slots import Slots; from pathlib import Path; import sys; "
        held += f"slots = Slots(1, 1, Path({str(folder)!r})); print('held', flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as first:
            assert first.stdout.readline() == b"held\n"
            with pytest.raises(InvalidInput, match="kept: another server keeps its caches there"):
                Slots(1, 1, folder)
            said = refused("serve", "nothing", "--cache-dir", folder)
            assert said.startswith(f"error: {folder}: another server keeps its caches there; give")
            first.send_signal(signal.SIGKILL)
            first.wait(HANGING)
        Slots(1, 1, folder).close()

    @pytest.mark.parametrize(("options", "says"), [
        ("--cache-dir OPEN", "OPEN: it is not for its owner alone"),
        ("--cache-dir FILE", "FILE: File exists; give another folder (--cache-dir)"),
        ("--cache-dir FILE/in", "Not a directory; give another folder (--cache-dir)"),
        ("--slots 4 --cache-limit much", "'much' is not a size"),
        ("--cache-limit 1GB", "--cache-limit limits what --slots or --cache-dir keep"),
        ("--slots 4 --stdin", "--slots and --cache-dir go with neither --stdin nor --cluster"),
        ("--cache-dir NEW --cluster local:2", "--slots and --cache-dir go with neither"),
    ])  # fmt: skip
    def test_what_is_refused_before_a_model_is_opened(self, talker, tmp_path, options, says):
        (tmp_path / "OPEN").mkdir(mode=0o755)
        (tmp_path / "FILE").write_bytes(b"")
        for name in ("OPEN", "FILE", "NEW"):
            options = options.replace(name, str(tmp_path / name))
        for name in ("OPEN", "FILE"):
            says = says.replace(name, str(tmp_path / name))
        assert says in refused("serve", str(talker.path), *options.split())


def last(served: ServedSession, ids: list[int], key: str | None = None) -> Finished:
    """The answer to token ids, with the logarithms of probabilities, which are equal to the bit."""
    sampling = {"max_tokens": 5, "temperature": 0.0, "logprobs": 3}
    *_, done = answers(served, Ask([ids], sampling, key=key))
    served.put_away()
    return done


#: How many tokens are not run again, where all layers keep rows of every token, and where some keep
#: only what they made of the last ones.
ROWS, LAST = [0, 0, 16, 16, 32, 16, 32, 16, 32, 64], [0, 0, 0, 16, 32, 16, 0, 16, 0, 64]


def drawn(done: Finished) -> tuple:
    return done.result.token_ids, done.tokens


class TestSession:
    @pytest.mark.parametrize(("family", "changes", "recipe"), long_but([
        ("llama", (), {"kv": "state"}),
        ("llama", (("head_dim", 24),), {"kv": "host", "verify": 4}),
        ("gemma3_text", (), {"kv": "host"}),
        ("lfm2", (), {"kv": "state"}),
        ("qwen3_5_text", (), {"kv": "state", "verify": 4}),
        ("qwen3_5_text", (), {"kv": "host"}),
    ], ("llama", (("head_dim", 24),), {"kv": "host", "verify": 4})))  # fmt: skip
    def test_what_comes_back_changes_no_bit(self, tiny_bundle, tmp_path, family, changes, recipe):
        """In half precision, from memory and from disk, whoever was served before."""
        bundle = tiny_bundle(family, changes, context=128, prefill=T, **recipe)[1]
        model, draw = bundle_model(bundle), random.Random(1)
        first = [draw.randrange(256) for _ in range(40)]
        others = [[*first[:n], *(draw.randrange(256) for _ in range(30))] for n in (0, 20, 33, 40)]
        expected = [drawn(last(*model.slots(), ids)) for ids in (first, *others)]
        for most in (4, 0):
            slots = Slots(most, 1 << 24, tmp_path / str(most))
            (served,), counts = model.slots(), []
            served.use(None, model.seal, slots)
            for i in (0, 1, 2, 1, 3, 1, 4, 1, 0, 4):
                done = last(served, (first, *others)[i])
                assert drawn(done) == expected[i], i
                counts.append(done.cached)
            assert counts == ROWS if served.session.goes_back else LAST
            assert slots.hits == {"memory" if most else "disk": sum(map(bool, counts))}
            slots.close()

    def test_a_client_that_leaves_and_a_request_of_several_prompts(self, talker):
        """The first leaves what it has run by then; each prompt of the second is kept."""
        model = bundle_model(talker)
        (served,), slots = model.slots(), Slots(9, 1 << 24)
        served.use(None, model.seal, slots)
        asked = answers(served, Ask([[1] * 90], {"max_tokens": 5}))
        for _ in range(3):
            next(asked)
        asked.close()
        served.put_away()
        assert slots.bytes["memory"] == 0
        prompts = [[2] * 40, [3] * 40, [2] * 40]
        kept = [
            done.cached
            for done in answers(served, Ask(prompts, {"max_tokens": 1}, n=2))
            if isinstance(done, Finished)
        ]
        served.put_away()
        assert kept == [0, 32, 0, 32, 32, 32] and len(slots._kept) == 2


def size(folder: Path) -> int:
    """Bytes of all files, while a server changes them: two looks alike, so that none is counted
    which came when another had left."""

    def look() -> dict[Path, int]:
        sizes = {}
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size if path.is_file() else 0
        return sizes

    seen = look()
    while (again := look()) != seen:
        seen = again
    return sum(seen.values())


def metric(address: str, name: str, place: str) -> float:
    text = httpx.get(f"{address}/metrics", headers=RED, timeout=HANGING).text
    (line,) = re.findall(rf'^ane_book_cache_{name}{{place="{place}"}} (.+)$', text, re.M)
    return float(line)


KEYS = [Key(name, f"{name}-secret") for name in ("red", "green", "blue")]
SHOWN = [{"authorization": f"Bearer {key.key}"} for key in KEYS]
RED = SHOWN[0]
COUNT = r'"(?:cached|cache_read_input)_tokens":(\d+)'


@pytest.fixture(scope="module")
def model(tiny_bundle, tmp_path_factory):
    changes = (("max_position_embeddings", 512),)
    bundle = tiny_bundle("llama", changes, kv="state", context=512, prefill=T)[1]
    copy = chatty_copy(bundle.path, tmp_path_factory.mktemp("slots"), eos_token_ids=[])
    return bundle_model(Bundle.open(copy), "talker", precision="fp32")


class TestServer:
    @pytest.mark.parametrize(
        ("requests", "people", "limit"),
        [(100, 10, 600_000), pytest.param(1000, 40, 3_000_000, marks=pytest.mark.long)],
    )
    def test_answers_are_a_single_sessions_within_the_limits(
        self, model, tmp_path, requests, people, limit
    ):
        """Three keys, whose people say much the same; four clients at once, and a restart."""
        folder, draw = tmp_path / "kept", random.Random(requests)
        talks = [[{"role": "system", "content": "Be of help to us all."}] for _ in range(people)]
        given: list[tuple[list[dict], str]] = []

        def ask(client: int, address: str, slots: Slots) -> None:
            for turn, person in enumerate(orders[client]):
                talk = talks[person]
                if len(talk) > 16:
                    del talk[1:]
                talk += [{"role": "user", "content": f"And {person // 3}, {turn}?"}]
                asked = {"messages": talk, "max_tokens": 3, "temperature": 0}
                shown = SHOWN[person % 3]
                got = httpx.post(address + CHAT, json=asked, headers=shown, timeout=HANGING)
                message = got.json()["choices"][0]["message"]
                given.append(([*talk], message["content"]))
                talk += [{"role": "assistant", "content": message["content"]}]
                assert max(slots.bytes.values()) <= limit and size(folder) <= limit

        for _ in range(2):
            slots = Slots(4, limit, folder)
            order = [draw.randrange(people) for _ in range(requests // 2)]
            orders = [[person for person in order if person % 4 == i] for i in range(4)]
            with serving(model, keys=KEYS, caches=slots) as address, ThreadPoolExecutor(4) as pool:
                for done in [pool.submit(ask, i, address, slots) for i in range(4)]:
                    done.result()
                assert metric(address, "hits_total", "memory") > 0
                assert metric(address, "hits_total", "disk") > 0
                assert metric(address, "tokens_total", "disk") >= T
                assert metric(address, "bytes", "disk") == sum(
                    path.stat().st_size for path in files(folder)
                )
            slots.close()
        alone = Session(model.bundle, precision="fp32")
        assert len(given) == requests
        for messages, text in given:
            assert alone.generate(messages, max_tokens=3, temperature=0.0).text == text

    @pytest.mark.parametrize("places", [4, 0])
    def test_nothing_goes_from_key_to_key(self, model, tmp_path, places):
        """By any path of the API, nor to requests without a key."""
        slots = Slots(places, 1 << 24, tmp_path / "kept")
        said = "what is the colour of the sky?"
        bodies = {
            CHAT: chat(f"In a chat, {said}"),
            "/v1/completions": {"model": "talker", "prompt": f"In a text, {said}"},
            "/v1/responses": {"input": f"As a response, {said}", "max_output_tokens": 4},
            "/v1/messages": chat(f"As a message, {said}", model="talker"),
        }
        with serving(model, keys=KEYS, caches=slots) as address:
            for path, body in bodies.items():
                cached = []
                for shown in (*SHOWN, *SHOWN):
                    got = httpx.post(address + path, json=body, headers=shown, timeout=HANGING)
                    cached += map(int, re.findall(COUNT, got.text))
                assert cached == [0] * 3 + [2 * T] * 3
        folders = [path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()]
        assert sorted(folders) == sorted(whose(key.name).folder for key in KEYS)

    def test_a_stop_waits_until_the_last_cache_is_written(self, model, tmp_path, monkeypatch):
        """The disk is slow: it has nothing yet when the answer is there and the signal comes."""
        folder, asked, ended = tmp_path / "kept", Event(), Event()
        slots = Slots(0, 1 << 24, folder)

        @contextmanager
        def slow(path: Path) -> Iterator[Path]:
            with written_whole(path) as part:
                yield part
                assert asked.wait(HANGING)
                ended.wait(1.0)  # a server that does not wait has ended by then

        def listens() -> bool:
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                return True
            return False

        def client() -> None:
            until(listens)
            with suppress(httpx.HTTPError):
                address = f"http://127.0.0.1:{port}{CHAT}"
                asking = {"json": chat("x" * 40), "timeout": HANGING}  # httpx's own is 5 seconds
                statuses.append(httpx.post(address, **asking).status_code)
            end()
            asked.set()

        monkeypatch.setattr("ane_serve.slots.written_whole", slow)  # of no plan that is kept
        monkeypatch.setattr("ane_serve.server.log_lines", lambda: None)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        statuses: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(client)
            assert run(create_app([model], caches=slots), port=port)
            found = [path.suffix for path in files(folder)]
            ended.set()
            done.result()
        assert (statuses, found) == ([200], [".safetensors"])

    @pytest.mark.long
    def test_the_command_goes_on_where_a_killed_one_was(self, model, tmp_path):
        """And refuses a second server meanwhile."""
        command = "serve", str(model.bundle.path), "--port", "0", "--precision", "fp32"
        command += "--slots", "2", "--cache-dir", str(tmp_path / "kept"), "--cache-limit", "1MB"
        cached = []
        for _ in range(2):
            with start(*command) as process, ExitStack() as stack:
                stack.callback(process.kill)
                line = "{}"
                while line.startswith("{"):
                    line = process.stderr.readline()
                address = re.search(r"http://[\d.:]+", line)[0]
                assert "another server keeps its caches there" in refused(*command)
                for words in ("What is the colour of the sky?", "And the one of the sea?"):
                    got = httpx.post(address + CHAT, json=chat(words), timeout=HANGING).json()
                    cached.append(got["usage"]["prompt_tokens_details"]["cached_tokens"])
                until(lambda: len([*tmp_path.rglob("*.safetensors")]) == 2)
        assert cached == [0, 0, 2 * T, T]
