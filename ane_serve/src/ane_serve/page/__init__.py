"""The chat at `/`: one file of HTML, which needs nothing but the server that sends it.

Its script and style stand in the file, and its Content-Security-Policy names them by their SHA-256:
a browser runs no other script on the page, whatever a model writes, and loads nothing from another
server.
"""

import base64
import hashlib
from importlib import resources
import re

from fastapi import FastAPI, Response

__all__ = ["add_page"]


def _hashes(html: str, tag: str) -> str:
    """The sources of a Content-Security-Policy that allow the inline elements of a tag alone."""
    contents = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", html, re.DOTALL)
    digests = (hashlib.sha256(text.encode()).digest() for text in contents)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _headers(html: str) -> dict[str, str]:
    policy = {
        "default-src": "'none'",
        "script-src": _hashes(html, "script"),
        "style-src": _hashes(html, "style"),
        "connect-src": "'self'",
        "img-src": "data:",  # the icon
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        # Chromium refuses `innerHTML` and its like: text can only be put in as text.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }


def add_page(app: FastAPI) -> None:
    """Serve the chat at `/`. It holds nothing secret, so it needs no API key."""
    html = resources.files(__name__).joinpath("index.html").read_text(encoding="utf-8")
    headers = _headers(html)

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return Response(html, media_type="text/html", headers=headers)
