"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import logging

from ane_book.errors import AneBookError, InvalidInput, PromptTooLong, printable

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
