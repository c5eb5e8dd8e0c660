"""Errors in OpenAI's shape, {"error": {"message", "type", "param", "code"}}, and on the paths of
Anthropic's API in its shape, {"type": "error", "error": {"type", "message"}}."""

import logging

from ane_book.errors import AneBookError, InvalidInput, PromptTooLong, printable

#: Where errors have Anthropic's shape, its types of them, and its status for a busy server.
ANTHROPIC = "/v1/messages"
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
BUSY, OVERLOADED = ("queue_full", "stopping"), 529

log = logging.getLogger("ane_serve")


class Refusal(Exception):
    """A request that gets no answer: a status, a sentence, and which field is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry: int | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, printable(message), code, param
        self.headers = {} if retry is None else {"retry-after": str(retry)}

    @property
    def kind(self) -> str:
        """OpenAI's type of the error."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return "rate_limit_error" if self.status == 429 else kind

    def body(self) -> dict:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def anthropic(self) -> dict:
        """The same in Anthropic's shape."""
        status = OVERLOADED if self.code in BUSY else self.status
        kind = KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def sent(self, path: str) -> tuple[int, dict]:
        """The status and the body of an answer to a request of this path."""
        if not f"{path}/".startswith(f"{ANTHROPIC}/"):
            return self.status, self.body()
        return OVERLOADED if self.code in BUSY else self.status, self.anthropic()


def refusal_of(error: Exception, model: str) -> Refusal:
    """Make a refusal of an error; one that is not the client's is logged, and not explained."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, PromptTooLong):
        return Refusal(400, str(error), code="context_length_exceeded")
    if isinstance(error, InvalidInput):
        return Refusal(400, str(error), code="invalid_value")
    ours = isinstance(error, AneBookError)
    log.error("%s: %s", model, error, exc_info=None if ours else error)
    why = f"{model} cannot answer now; the server's log says why"
    return Refusal(503 if ours else 500, why, code="model_failed" if ours else "internal_error")
