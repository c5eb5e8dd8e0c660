"""`create_app`: the routes of OpenAI's and Anthropic's APIs, and those for an operator."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from ane_book import __version__
from ane_book.errors import BY_LOGITS
from ane_book.runtime import Embedder
from ane_serve.api import requests
from ane_serve.api.answers import ChatShape, CompletionShape
from ane_serve.api.blocks import MessageShape
from ane_serve.api.messages import CountTokens, Messages
from ane_serve.api.refusal import Refusal
from ane_serve.api.responses import Responses, ResponsesShape
from ane_serve.generation import Ask, ServedSession, answers
from ane_serve.jobs import Job, Jobs
from ane_serve.keys import Key, check_keys
from ane_serve.metrics import Metrics
from ane_serve.middleware import Middleware
from ane_serve.page import add_page
from ane_serve.pool import EMBEDDING, TEXT, Model, Pool
from ane_serve.sending import Json, TextAnswer, TokensAnswer, VectorsAnswer
from ane_serve.slots import Slots
from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import Response

BODY = 4 << 20  # bytes: a million tokens
BODY_S = 30.0  # until one has to be there
SOURCE_TOKENS, COMPLETION_TOKENS = 50, 16  # of an answer, where the request says nothing
CHANGES = ("logit_bias", "presence_penalty", "frequency_penalty")  # what a greedy choice heeds too
AT_A_TIME = 16  # texts, between two checks whether the client still waits for their vectors
DESCRIPTION = (
    "Language models from bundles of the ANE Book, as clients of OpenAI and Anthropic ask for them."
)


def embedded(
    embedder: Embedder,
    texts: Sequence[str | list[int]],
    prompt: str | None = None,
    dimensions: int | None = None,
) -> Generator[tuple | None, None, None]:
    """Yield a vector (E,) and the number of tokens of each text; None for a step without one.

    prompt, dimensions: as `Embedder.embed` takes them.
    """
    ids = []
    for i, text in enumerate(texts):
        if isinstance(text, str):
            text = embedder.encode(text, f"input {i}", False, prompt)
        ids.append(text)
        yield None
    for start in range(0, len(ids), AT_A_TIME):
        part = ids[start : start + AT_A_TIME]
        yield from zip(embedder.vectors(part, dimensions), map(len, part), strict=True)


class Service:
    """The work behind the routes."""

    def __init__(self, pool: Pool, jobs: Jobs, seconds: float, texts: bool):
        self.pool, self.jobs, self.texts = pool, jobs, texts
        self._doing = lambda job, receive: jobs.doing(job, receive, seconds)

    def text(self, request: Request, model: Model, asked, ask: Ask, shape) -> Response:
        if self.texts:
            request.state.note.facts |= {"prompts": ask.prompts, "answers": shape.texts}
        ask = replace(ask, key=request.state.note.facts.get("key"))
        job = Job(model, lambda served: answers(served, ask))
        return TextAnswer(self._doing, job, request.state.note, shape, asked)

    def chat(
        self, request: Request, asked: requests.Chat, shaped: type[ChatShape] = ChatShape,
        lenient: bool = False, **shape,
    ) -> Response:  # fmt: skip
        model = self.pool.find(asked.model, TEXT)
        ask = replace(self._ask(asked, model), lenient=lenient)
        return self.text(request, model, asked, ask, shaped(model.name, model.seal, **shape))

    def _ask(self, asked: requests.Chat, model: Model) -> Ask:
        messages = [message.plain() for message in asked.messages]
        sampling = self._sampling(asked, model, asked.most, 1.0) | asked.form()
        tools, choice = asked.offered
        return Ask(
            [messages], sampling, asked.n, _seed(asked), effort=asked.effort,
            tools=tools, choice=choice, parts=True,
        )  # fmt: skip

    def count(self, request: Request, asked: requests.Chat) -> Response:
        model = self.pool.find(asked.model, TEXT)
        ask = replace(self._ask(asked, model), lenient=True)

        def steps(served: ServedSession) -> Generator[dict, None, None]:
            yield {"input_tokens": len(served.ids(ask, ask.prompts[0]))}

        return TokensAnswer(self._doing, Job(model, steps), request.state.note)

    def completion(self, request: Request, asked: requests.Completion) -> Response:
        model, plain = self.pool.find(asked.model, TEXT), asked.plainly_asked
        most = asked.max_tokens or (SOURCE_TOKENS if plain else COMPLETION_TOKENS)
        sampling = self._sampling(asked, model, most, 0.0 if plain else 1.0)
        ask = Ask(asked.prompts(), sampling, asked.n, _seed(asked), asked.system, not plain)
        shape = CompletionShape(model.name, model.seal, plain=plain)
        return self.text(request, model, asked, ask, shape)

    def embedding(self, request: Request, asked: requests.EmbeddingRequest) -> Response:
        model = self.pool.find(asked.model, EMBEDDING)
        if (asked.dimensions or 1) > model.size:
            message = f"{model.name} makes vectors of {model.size} numbers, and no more"
            raise Refusal(400, message, code="unsupported_value", param="dimensions")

        def steps(embedder: Embedder) -> Generator[tuple | None, None, None]:
            return embedded(embedder, asked.texts(), asked.prompt, asked.dimensions)

        job = Job(model, steps)
        return VectorsAnswer(self._doing, job, request.state.note, asked.encoding_format)

    def tokenize(self, request: Request, asked: requests.Tokenize) -> Response:
        model, prompt = self.pool.find(asked.model, TEXT), asked.asked()

        def steps(served: ServedSession) -> Generator[dict, None, None]:
            ids = served.ids(Ask([prompt], {}, plain=isinstance(prompt, str)), prompt)
            facts = {"tokens": ids, "count": len(ids), "max_model_len": model.context}
            yield {"object": "tokens", "model": model.name, **facts}

        return TokensAnswer(self._doing, Job(model, steps), request.state.note)

    def _sampling(self, asked, model: Model, most: int | None, temperature: float) -> dict:
        """The fields of `options.Sampling`; OpenAI's temperature is 1 where none is given."""
        sampling = asked.sampling(most, 0.0 if model.argmax else temperature)
        wrong = {
            "temperature": sampling["temperature"] > 0,
            "logprobs": asked.likeliest is not None,
            **{name: bool(sampling[name]) for name in CHANGES},
        }
        if isinstance(asked, requests.Chat):
            wrong |= {"response_format": bool(asked.form()), "tools": bool(asked.offered[0])}
        for param in (name for name, given in wrong.items() if given and model.argmax):
            message = f"{model.name} gives the likeliest token alone, so there is no {param}"
            raise Refusal(400, message, code="unsupported_value", param=param)
        return sampling


def _seed(asked) -> int | None:
    return None if asked.seed is None else asked.seed % 2**63


def _facts(model: Model, loaded: list[str]) -> dict:
    facts = {"id": model.name, "object": "model", "created": model.created, "owned_by": "ane-book"}
    return facts | {"task": model.task, "context": model.context, "loaded": model.name in loaded}


def create_app(
    models: list[Model],
    *,
    memory: int | None = None,
    key: str | None = None,
    keys: Sequence[Key] = (),
    origins: tuple[str, ...] = (),
    waiting: int = 64,
    slots: int = 1,
    seconds: float = 600.0,
    body: int = BODY,
    texts: bool = False,
    caches: Slots | None = None,
) -> FastAPI:
    """The application. `app.state.jobs` is its queue, to be closed before the server is stopped.

    models: what is served, see `ane_serve.pool.bundle_model`. memory: most bytes of models at
    once. key: the API key that clients must send. keys: others, with limits of their own. origins:
    sites whose web pages may ask. waiting: most requests in the queue. slots: requests at work at
    once. seconds: for a request, with its wait. body: most bytes of one. texts: write prompts and
    answers into the log. caches: of conversations, where they are kept.

    Raises InvalidInput.
    """
    pool = Pool(models, memory, caches)
    jobs = Jobs(pool, slots, waiting)
    app = FastAPI(
        title="ane-book", version=__version__, description=DESCRIPTION, docs_url=None,
        redoc_url=None, default_response_class=Json,
    )  # fmt: skip
    app.state.jobs, metrics = jobs, Metrics(jobs)
    _add_routes(app, Service(pool, jobs, seconds, texts))
    _add_looks(app, jobs, metrics.text)
    add_page(app)
    _add_refusals(app)
    every = [*keys, *([] if key is None else [Key("key", key)])]
    check_keys(every)
    app.add_middleware(
        Middleware, metrics=metrics, keys=every, seconds=min(seconds, BODY_S), body=body
    )
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    statuses = (400, 401, 404, 413, 429, 503, 529)
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": "Refused."} for status in statuses
    }

    @app.post("/v1/chat/completions", responses=errors)
    async def chat(request: Request, asked: Annotated[requests.Chat, Body()]):
        """Answer a conversation."""
        return service.chat(request, asked)

    @app.post("/v1/completions", responses=errors)
    async def completions(request: Request, asked: Annotated[requests.Completion, Body()]):
        """Go on with a text; without a model's name, answer it."""
        return service.completion(request, asked)

    @app.post("/v1/responses", responses=errors)
    async def responses(request: Request, asked: Annotated[Responses, Body()]):
        """Answer a conversation, in items."""
        if kinds := asked.left_out:
            request.state.note.facts["tools_left_out"] = kinds
        return service.chat(request, asked.chat(), ResponsesShape, asked.lenient, given=asked)

    @app.post("/v1/messages", responses=errors)
    async def messages(request: Request, asked: Annotated[Messages, Body()]):
        """Answer a conversation, as Anthropic's API has it."""
        chat, most = asked.chat(), asked.max_tokens
        return service.chat(request, chat, MessageShape, asked.lenient, most=most)

    @app.post("/v1/messages/count_tokens", responses=errors)
    async def count_tokens(request: Request, asked: Annotated[CountTokens, Body()]):
        """How many tokens such a conversation has."""
        return service.count(request, asked.chat())

    @app.api_route("/v1/messages/batches{rest:path}", methods=["GET", "POST", "DELETE"],
                   include_in_schema=False)  # fmt: skip
    async def batches(rest: str):
        raise Refusal(404, "batches are not served here; send each request to /v1/messages")

    @app.post("/tokenize", responses=errors)
    async def tokenize(request: Request, asked: Annotated[requests.Tokenize, Body()]):
        """The tokens of a text or a conversation."""
        return service.tokenize(request, asked)

    @app.post("/v1/embeddings", responses=errors)
    async def embeddings(request: Request, asked: Annotated[requests.EmbeddingRequest, Body()]):
        """Make vectors of texts."""
        return service.embedding(request, asked)

    @app.post("/v1/choose", include_in_schema=False)
    @app.post("/v1/rerank", include_in_schema=False)
    async def gone():
        instead = "ask a chat for one token with top_logprobs; in Python"
        raise Refusal(410, f"no longer served: {instead} {BY_LOGITS}")

    @app.get("/v1/models")
    async def models():
        """What is served."""
        loaded = service.pool.loaded()
        data = [_facts(model, loaded) for model in service.pool.models.values()]
        return Json({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}", responses={404: {"description": "Refused."}})
    async def model(name: str):
        """One of the models."""
        served = service.pool.models.get(name)
        if served is None:
            message = f"the model {name[:100]!r} does not exist"
            raise Refusal(404, message, code="model_not_found", param="model")
        return Json(_facts(served, service.pool.loaded()))


def _add_looks(app: FastAPI, jobs: Jobs, metrics_text: Callable[[], bytes]) -> None:
    @app.get("/health")
    async def health():
        """Whether it is there, and how busy."""
        loaded = jobs.pool.loaded()
        facts = {"status": "ok", "running": jobs.running, "waiting": jobs.waiting}
        return Json(facts | {"models": list(jobs.pool.models), "loaded": loaded})

    @app.get("/metrics")
    async def metrics():
        """Counters, as Prometheus reads them."""
        text = await asyncio.to_thread(metrics_text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal):
        request.state.note.refused(refusal)
        status, body = refusal.sent(request.url.path)
        return Json(body, status, refusal.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError):
        return await refused(request, requests.refuse_invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException):
        what = f"{request.method} {request.url.path[:100]}: {error.detail}"
        refusal = Refusal(error.status_code, what)
        refusal.headers |= error.headers or {}
        return await refused(request, refusal)
