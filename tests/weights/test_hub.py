"""Where weights are found: a path, the cache, the hub (one made here), the wheel."""

from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json
from pathlib import Path
import socket
import threading

from _patience import guarded
from _tiny_gguf import write_gguf
from _tiny_weights import WHEEL, needs_wheel, parameters, save_folder, tiny_model
from ane_book.errors import WeightsNotFound
from ane_book.weights import hub, open_source
from huggingface_hub import constants
import numpy as np
import pytest

REFERENCE = hub.Reference("tiny", "someone/tiny", wheel=hub.Wheel("no-such-wheel", "1.0", "x.gguf"))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """A cache of our own, and a hub that is switched off."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def fill(cache_folder: Path) -> Path:
    repo = cache_folder / "models--someone--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    return save_folder(repo / "snapshots" / COMMIT, tiny_model("llama"))


def test_finds_a_given_path_first(tmp_path, hub_cache):
    fill(hub_cache)
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"))
    assert hub.find_weights(REFERENCE, path) == path
    with pytest.raises(WeightsNotFound, match="no such file"):
        hub.find_weights(REFERENCE, tmp_path / "nothing")


def test_finds_the_cache(hub_cache):
    folder = fill(hub_cache)
    assert hub.find_weights(REFERENCE) == folder


def test_what_came_with_the_library_is_in_its_folder_and_nowhere_else(tmp_path, hub_cache):
    folder = save_folder(tmp_path / "tiny", tiny_model("llama"))
    reference = hub.Reference("tiny", folder=folder)
    assert hub.find_weights(reference) == hub.find_weights(reference, online=False) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsNotFound, match=r"there, but no .safetensors file"):
        hub.find_weights(reference)


def test_names_every_place(hub_cache):
    with pytest.raises(WeightsNotFound) as caught:
        hub.find_weights(REFERENCE)
    message = str(caught.value)
    assert f"cache ({hub_cache}): no whole copy" in message
    assert "the hub (someone/tiny): HF_HUB_OFFLINE is set" in message
    assert "wheel: no-such-wheel is not installed" in message
    assert "`pip install --no-deps no-such-wheel==1.0`" in message
    assert "`hf download someone/tiny`" in message


def test_half_a_download_is_not_the_model(hub_cache):
    (fill(hub_cache) / "model.safetensors").unlink()
    with pytest.raises(WeightsNotFound, match=r"cache .*: .*no .safetensors file"):
        hub.find_weights(REFERENCE)


@needs_wheel
def test_finds_the_wheel_and_no_other_version(hub_cache):
    reference = hub.Reference("smollm2", "someone/smollm2", wheel=WHEEL)
    assert hub.find_weights(reference) == WHEEL.path()
    with pytest.raises(WeightsNotFound, match=r"is installed as 0.1.2, not 9.9; run `pip install"):
        hub.Wheel(WHEEL.distribution, "9.9", WHEEL.file).path()
    with pytest.raises(WeightsNotFound, match=r"does not hold x.gguf"):
        hub.Wheel(WHEEL.distribution, WHEEL.version, "x.gguf").path()


def test_a_hub_that_never_answers_is_asked_once(hub_cache, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(hub, "SECONDS_TO_ANSWER", 0.5)
        with guarded(), pytest.raises(WeightsNotFound, match=r"hub .*: out of reach"):
            hub.find_weights(REFERENCE)
        silent.setblocking(False)
        with suppress(BlockingIOError):  # none, where even that took too long
            silent.accept()[0].close()
            pytest.fail(f"asked again by {silent.accept()[1]}")


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for: a revision, its list of files, the files."""

    folder: Path

    def do_GET(self):
        files = sorted(path for path in self.folder.iterdir())
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/someone/tiny/revision/"):
            siblings = [{"rfilename": file.name} for file in files]
            return self._send(
                json.dumps({"id": "someone/tiny", "sha": COMMIT, "siblings": siblings})
            )
        if path.startswith("/api/models/someone/tiny/tree/"):
            entries = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0" * 40}
                for file in files
            ]
            return self._send(json.dumps(entries))
        if path.startswith(f"/someone/tiny/resolve/{COMMIT}/"):
            return self._send((self.folder / path.rpartition("/")[2]).read_bytes())
        return self._send("", 404 if path != "/" else 200)

    do_HEAD = do_GET

    def _send(self, content: str | bytes, status: int = 200):
        content = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash(content) & 0xFFFFFFFF:x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        """Say nothing: the test's output is its result."""


def test_downloads_from_the_hub(tmp_path, hub_cache, monkeypatch):
    _Hub.folder = save_folder(tmp_path / "repo", tiny_model("llama"))
    (_Hub.folder / "pytorch_model.bin").write_bytes(b"not asked for")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    try:
        folder = hub.find_weights(REFERENCE)
    finally:
        server.shutdown()
        server.server_close()
    assert folder.is_relative_to(hub_cache) and not (folder / "pytorch_model.bin").exists()
    source = open_source(folder)
    np.testing.assert_array_equal(
        source.tensor("model.norm.weight"), parameters(tiny_model("llama"))["model.norm.weight"]
    )
