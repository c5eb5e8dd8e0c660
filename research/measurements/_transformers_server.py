"""`transformers` behind OpenAI's API: a real server of another kind, to be timed beside."""

from collections.abc import Iterator
from contextlib import contextmanager
import json
from pathlib import Path
from queue import SimpleQueue
import socket
from threading import Thread
import time

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
import torch
import uvicorn

MODEL = "transformers"


class Asked(BaseModel):
    """What of a request a greedy answer needs."""

    messages: list[dict]
    max_tokens: int


def transformers_app(model, tokenizer: Path, template: str, ends: list[int]) -> FastAPI:
    """`generate` of a `transformers` model, greedy, streamed as OpenAI's chat completions are.

    ends: tokens that end an answer; [] for answers that always take what they may.
    """
    from transformers import PreTrainedTokenizerFast

    words = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), chat_template=template)
    ending = {"eos_token_id": ends or None, "pad_token_id": 0}
    app = FastAPI()

    @app.get("/v1/models")
    def models() -> dict:
        return {"object": "list", "data": [{"id": MODEL, "object": "model"}]}

    @app.post("/v1/chat/completions")
    def complete(asked: Asked) -> StreamingResponse:
        text = words.apply_chat_template(asked.messages, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([words(text, add_special_tokens=False)["input_ids"]])
        events = _events(model, words, ids, asked.max_tokens, ending)
        return StreamingResponse(events, media_type="text/event-stream")

    return app


def _events(model, words, ids: torch.Tensor, most: int, ending: dict) -> Iterator[str]:
    """The stream of an answer: a piece for each token, the end, what was counted."""
    streamer, made = Tokens(), []

    def work() -> None:
        how = {"max_new_tokens": most, "do_sample": False, "streamer": streamer} | ending
        try:
            model.generate(ids, attention_mask=torch.ones_like(ids), **how)
        finally:
            streamer.end()  # where it failed, too

    worker = Thread(target=work)
    worker.start()
    said = ""
    for token in iter(streamer.queue.get, None):  # None: the end
        made.append(token)
        text = words.decode(made, skip_special_tokens=True)
        if not text.endswith("\ufffd") or len(made) == most:  # a character may be two tokens
            yield event({"choices": [{"delta": {"content": text[len(said) :]}}]})
            said = text
    worker.join()
    reason = "length" if len(made) == most else "stop"
    yield event({"choices": [{"delta": {}, "finish_reason": reason}]})
    usage = {"prompt_tokens": ids.shape[1], "completion_tokens": len(made)}
    yield event({"choices": [], "usage": usage}) + "data: [DONE]\n\n"


class Tokens:
    """What `generate` hands its tokens to, the prompt first, as they come."""

    def __init__(self):
        self.queue, self._prompt = SimpleQueue(), True

    def put(self, tokens: torch.Tensor) -> None:
        if not self._prompt:
            self.queue.put(int(tokens))
        self._prompt = False

    def end(self) -> None:
        self.queue.put(None)


def event(facts: dict) -> str:
    return f"data: {json.dumps({'object': 'chat.completion.chunk'} | facts)}\n\n"


@contextmanager
def served(app: FastAPI, **options) -> Iterator[str]:
    """Serve an app on a free port of this machine; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", **options))
        thread = Thread(target=server.run, kwargs={"sockets": [free]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            kind = "https" if "ssl_certfile" in options else "http"
            yield f"{kind}://127.0.0.1:{free.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
