"""Who waits, who is served, who has gone: over real sockets, with an engine that the test holds."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import product
import json

from _gates import CHAT, Held, ask, bare, chat, out_of_time, until
from _long import long_but
from _patience import HANGING
from _serving import served, serving
from ane_book.runtime import Session
from ane_serve.app import create_app
from ane_serve.pool import bundle_model
import httpx
from openai.types.responses import ResponseFailedEvent
import pytest


@pytest.fixture
def held(talker):
    return Held(bundle_model(talker, "talker"))


@pytest.fixture
def app(held):
    return create_app([held.model], waiting=2)


@pytest.fixture
def address(app, held):
    with served(app) as address:
        yield address
        held.let()


def busy(app, waiting: int) -> None:
    until(lambda: (app.state.jobs.running, app.state.jobs.waiting) == (1, waiting))


def idle(app) -> None:
    until(lambda: not app.state.jobs.running and not app.state.jobs.waiting)


@pytest.mark.parametrize("requests", long_but((200, 1000), 200))
def test_requests_of_32_clients_get_their_own_answers(talker, requests):
    """None lost and none mixed: each is, to the bit, what a session alone gives."""
    session, expected = Session(talker), {}
    for i, (words, most, seed) in enumerate(product("abcde", (1, 2, 4), (None, 1, 2))):
        system = f"You are number {i % 2}, and these words are shared by many."
        messages = [{"role": "system", "content": system}, {"role": "user", "content": words}]
        sampling = {"max_tokens": most, "temperature": 0.0 if seed is None else 1.5, "seed": seed}
        body = {"messages": messages, **sampling}
        expected[i] = body, session.generate(messages, **sampling).text

    async def ask_one(client: httpx.AsyncClient, number: int, turn: asyncio.Semaphore) -> None:
        body, text = expected[number % len(expected)]
        async with turn:
            found = (await client.post(CHAT, json=body)).json()
        assert found["choices"][0]["message"]["content"] == text, number

    async def ask_all(address: str) -> None:
        turn = asyncio.Semaphore(32)
        limits = httpx.Limits(max_connections=32)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=HANGING) as client:
            await asyncio.gather(*(ask_one(client, number, turn) for number in range(requests)))

    with serving(bundle_model(talker, "talker")) as address:
        asyncio.run(ask_all(address))
        metrics = httpx.get(f"{address}/metrics", timeout=HANGING).text
    counted = f'requests_total{{path="/v1/chat/completions",status="200"}} {requests}.0'
    assert counted in metrics
    cached = next(line for line in metrics.splitlines() if 'tokens_total{kind="cached"}' in line)
    assert float(cached.split()[1]) > 0


class TestBound:
    def test_who_does_not_fit_is_told_when_to_come_again(self, app, address, held):
        with ThreadPoolExecutor(3) as pool:
            asked = []
            for waiting in range(3):
                asked.append(pool.submit(ask, address))
                busy(app, waiting)
            refused = ask(address)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            held.let()
            texts = {each.result().json()["choices"][0]["message"]["content"] for each in asked}
            assert len(texts) == 1
        idle(app)

    def test_a_deadline_ends_what_waits_and_what_runs(self, held):
        app = create_app([held.model], seconds=0.5)
        with served(app) as address, ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(ask, address) for _ in range(2)]
            for response in (each.result() for each in asked):
                assert response.status_code == 504
                assert "within 0.5 s" in response.json()["error"]["message"]
            held.let()
            idle(app)
        assert held.calls <= 1

    def test_a_deadline_in_the_middle_of_a_stream_is_told_there(self, held):
        found, seconds = out_of_time(held, CHAT, chat(stream=True, max_tokens=64))
        *events, last = found.text.strip().split("\n\n")
        assert found.status_code == 200 and len(events) > 3
        error = json.loads(last.removeprefix("data: "))["error"]
        assert f"within {seconds} s" in error["message"]

    def test_the_newer_api_tells_it_as_an_event(self, held):
        body = {"input": "Hi", "stream": True, "temperature": 0}
        found, seconds = out_of_time(held, "/v1/responses", body)
        *events, last = found.text.strip().split("\n\n")
        head, _, data = last.partition("\n")
        assert head == "event: response.failed"
        event = ResponseFailedEvent.model_validate_json(data.removeprefix("data: "))
        assert event.sequence_number == len(events) and event.response.status == "failed"
        assert f"within {seconds} s" in event.response.error.message


class TestGone:
    def test_a_client_that_vanishes_frees_the_engine_within_one_token(self, app, address, held):
        with bare(address, chat(stream=True, max_tokens=64)) as client:
            held.let(8)
            while b"content" not in client.recv(4096):
                pass
            until(lambda: held.calls == 8)
        until(lambda: not app.state.jobs._running or app.state.jobs._running[0].left)
        held.let()
        idle(app)
        assert held.calls <= 9
        assert ask(address).status_code == 200

    def test_in_the_middle_of_a_long_prompt(self, app, address, held):
        with bare(address, chat("x" * 90)):  # six calls of 16
            held.let(2)
            until(lambda: held.calls == 2)
        until(lambda: all(job.left for job in [*app.state.jobs._running]))
        held.let()
        idle(app)
        assert 2 <= held.calls <= 3

    def test_one_that_waits_gives_its_place_back(self, app, address, held):
        with bare(address, chat()):
            busy(app, 0)
            with bare(address, chat()):
                busy(app, 1)
            busy(app, 0)
        held.let()
        idle(app)

    def test_a_slow_reader_holds_no_engine(self, app, address, held):
        held.let()
        with bare(address, chat(stream=True, n=8, max_tokens=100), buffer=4096) as client:
            idle(app)  # 200 KB of chunks are made, and not one was read
            assert ask(address).status_code == 200
            text = b""
            while b"[DONE]" not in text:
                text += client.recv(1 << 16)
        assert text.count(b'"finish_reason":"length"') == 8

    def test_half_a_request_holds_nothing(self, held, monkeypatch):
        held.let()
        monkeypatch.setattr("ane_serve.app.BODY_S", 0.5)
        with serving(held.model) as address, bare(address, chat(), part=0.5) as client:
            assert ask(address).status_code == 200
            assert b"408 " in client.recv(4096).splitlines()[0]


class TestModels:
    def test_the_least_recently_used_is_let_go(self, talker):
        models = [bundle_model(talker, name) for name in "abc"]
        expected = [["a"], ["a", "b"], ["b", "a"], ["a", "c"], ["c", "b"]]
        memory = round(2.5 * models[0].bytes)
        with serving(*models, memory=memory) as address:

            def loaded(name: str) -> list[str]:
                assert ask(address, model=name, max_tokens=1).status_code == 200
                return httpx.get(f"{address}/health", timeout=HANGING).json()["loaded"]

            assert [loaded(name) for name in "abacb"] == expected

    def test_none_that_is_at_work_is(self, held, talker):
        other = bundle_model(talker, "other")
        app = create_app([held.model, other], memory=round(1.5 * other.bytes), slots=2)
        with served(app) as address, ThreadPoolExecutor(2) as pool:
            first = pool.submit(ask, address)
            held.wait()
            second = pool.submit(ask, address, model="other")
            until(lambda: app.state.jobs.running == 2)
            assert app.state.jobs.pool.loaded() == ["talker"] and not second.done()
            held.let()
            answers = [each.result().json()["choices"][0]["message"] for each in (first, second)]
            assert answers[0] == answers[1]
            assert app.state.jobs.pool.loaded() == ["other"]
