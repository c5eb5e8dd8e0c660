"""The site that `make book` has left in _build/html, and how a browser is shown it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
import http.server
from pathlib import Path
import threading

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
TOC = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
PAGES = [TOC["root"]] + [c["file"] for part in TOC["parts"] for c in part["chapters"]]

each_page = pytest.mark.parametrize("page", PAGES)
needs_site = pytest.mark.skipif(
    not (SITE / "index.html").exists(), reason="no site in _build/html: run `make book` first"
)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def served_site() -> Iterator[str]:
    """The site's address on loopback."""
    handler = partial(QuietHandler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
