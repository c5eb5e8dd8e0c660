"""A server that says what a test tells it to, in OpenAI's shapes: the other side of the chat page.

It sends the page as the real server does, and answers chats with the events of `peer.script`.
"""

import asyncio
import json
import threading

from ane_serve.page import add_page
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse


def chunk(text: str | None = None, finish: str | None = None) -> dict:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage(prompt: int, completion: int, **speeds: float) -> dict:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [], "usage": counts, **speeds}


class Peer:
    """script: what each chat gets: dicts are events, strings and bytes go as they are, numbers are
    seconds to wait, and None ends the connection without its end. A Response goes as it is.
    """

    def __init__(self):
        self.reset()
        self.app = FastAPI()
        add_page(self.app)
        self.app.get("/v1/models")(self.list)
        self.app.post("/v1/chat/completions")(self.chat)

    def reset(self) -> None:
        self.models, self.key, self.script = ["tiny", "other"], None, []
        self.asked: list[dict] = []  # bodies of the chats
        self.left = threading.Event()  # a client went away in the middle

    def refusal(self, request: Request) -> JSONResponse | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "the API key is wrong"}}, status_code=401)

    def list(self, request: Request):
        models = [{"id": name, "object": "model"} for name in self.models]
        return self.refusal(request) or JSONResponse({"object": "list", "data": models})

    async def chat(self, request: Request):
        if refusal := self.refusal(request):
            return refusal
        self.asked.append(await request.json())
        if not isinstance(self.script, list):
            return self.script
        return StreamingResponse(self.events(list(self.script)), media_type="text/event-stream")

    async def events(self, script: list):
        try:
            for step in script:
                if isinstance(step, int | float):
                    await asyncio.sleep(step)
                elif step is None:
                    return
                else:
                    yield step if isinstance(step, str | bytes) else f"data: {json.dumps(step)}\n\n"
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left.set()
            raise
