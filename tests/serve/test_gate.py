"""Who may ask: keys, names of this machine, pages of other sites; and what is written down."""

from itertools import product
import json
import logging
import socket

from _gates import CHAT, ask, chat
from _patience import HANGING
from _serving import served, serving
from ane_serve import server
from ane_serve.app import create_app
from ane_serve.server import Connection, listener
import httpx
import pytest


def got(url: str, how: str = "GET", content: str | None = None, **headers) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(how, url, content=content, headers=named, timeout=HANGING)


class TestWithoutAKey:
    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:1"])
    def test_this_machine_may_ask(self, address, host):
        assert got(f"{address}/health", host=host).status_code == 200

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
    def test_a_name_that_was_made_to_point_here_may_not(self, address, host):
        response = got(f"{address}/v1/models", host=host)
        assert response.status_code == 403
        assert "localhost alone" in response.json()["error"]["message"]

    def test_a_page_of_another_site_may_not(self, address):
        asked = {"origin": "https://evil.example", "access_control_request_method": "POST"}
        response = got(address + CHAT, "OPTIONS", **asked)
        assert response.status_code == 405 and "access-control-allow-origin" not in response.headers
        plain = {"origin": "https://evil.example", "content_type": "text/plain"}
        assert got(address + CHAT, "POST", json.dumps(chat()), **plain).status_code == 415


def test_a_key_and_a_site_that_may_ask(models):
    site = "https://app.example"
    with serving(*models, key="sesame", origins=(site,)) as address:
        assert got(f"{address}/health", host="far.example").status_code == 200
        wrong = ({}, {"authorization": "Bearer wrong"}, {"authorization": b"Bearer s\xe9same"})
        for shown, path in product(wrong, ("/v1/models", "/metrics", "/openapi.json")):
            response = got(address + path, origin=site, **shown)
            assert response.status_code == 401
            assert response.headers["access-control-allow-origin"] == site
        right = {"authorization": "Bearer sesame", "origin": site, "host": "far.example"}
        assert got(f"{address}/v1/models", **right).status_code == 200
        asked = {"access_control_request_method": "POST",
                 "access_control_request_headers": "authorization,content-type"}  # fmt: skip
        for origin, status in ((site, 200), ("https://evil.example", 400)):
            found = got(address + CHAT, "OPTIONS", origin=origin, **asked)
            assert found.status_code == status


@pytest.mark.parametrize("texts", [False, True])
def test_a_line_a_request(models, caplog, texts):
    logger = logging.getLogger("ane_serve.requests")
    with caplog.at_level(logging.INFO, logger.name), serving(*models, texts=texts) as address:
        answer = ask(address, text="My secret", max_tokens=3)
        ask(address, text="My secret", n=-1)
    lines = [record.msg for record in caplog.records if record.name == logger.name]
    assert [line["status"] for line in lines] == [200, 400]
    assert ["error" in line for line in lines] == [False, True]
    assert lines[1]["error"] == "invalid_value"
    first = lines[0]
    assert first["id"] == answer.headers["x-request-id"]
    assert first["completion_tokens"] == 3 and first["finish"] == "length"
    assert 0 <= first["queue_s"] <= first["first_s"] <= first["seconds"]
    said = answer.json()["choices"][0]["message"]["content"]
    assert (("My secret" in str(first)), first.get("answers") == [said]) == (texts, texts)


def test_what_is_written_goes_out_at_once():
    """Else a piece of a stream waits until the one before is acknowledged, up to 40 ms."""
    with listener() as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class TestWhoSendsNoRequest:
    @pytest.mark.parametrize(("before", "sent"), [
        (b"", b""), (b"", b"GET /health HTTP/1.1\r\nHost: local"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: l"),
    ])  # fmt: skip
    def test_is_let_go(self, models, monkeypatch, before, sent):
        """A head that never ends, the first one or a later one, holds no connection for good."""
        monkeypatch.setattr(server, "HEAD_S", 0.2)
        with served(create_app(list(models)), http=Connection, timeout_keep_alive=1) as address:
            port = int(address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), 120) as client:
                client.sendall(before + sent)
                while client.recv(1 << 16):  # a timeout fails; until then the server ends it
                    pass

    def test_who_sends_one_is_not(self, models):
        """The time is for a head alone: it stops when one is there, and while none is awaited."""
        connections = []

        class Kept(Connection):
            def connection_made(self, transport):
                connections.append(self)
                super().connection_made(transport)

        with served(create_app(list(models)), http=Kept) as address, httpx.Client() as client:
            for _ in range(3):
                assert client.get(f"{address}/health").status_code == 200
                assert len(connections) == 1 and connections[0]._late is None
