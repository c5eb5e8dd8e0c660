"""Benchmark a session in this process, or the cold start of a model in a fresh one."""

from contextlib import closing
from pathlib import Path
import subprocess
import sys
import time

from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from ane_book.text.chat import Messages
from ane_serve.bench.answer import TimedAnswer, timed
from ane_serve.bench.prompts import PROMPTS, Prompt


class InProcess:
    """A subject of a benchmark: a session in this process, without any server."""

    def __init__(self, session: Session):
        self.session = session
        backend = session.backend
        self.where = "in this process"
        precision = getattr(backend, "precision", None) or getattr(backend, "compute_units", "")
        self.name = f"{session.bundle.manifest.name}, backend {backend.name} {precision}".strip()

    def ask(self, prompt: Prompt, mark: int, max_tokens: int, sampling: dict) -> TimedAnswer:
        """The answer to a prompt; raises PromptTooLong or InvalidInput."""
        asked: str | Messages = prompt.messages(mark)
        if self.session.bundle.manifest.tokenizer.chat_template is None:
            asked = "\n".join(message["content"] for message in prompt.messages(mark))
        stream = self.session.stream(asked, max_tokens=max_tokens, **sampling)
        with closing(stream):
            text, first, total, pieces = timed(stream)
            result = stream.finish()
        rates = {"prefill": result.prefill_tps, "decode": result.decode_tps}
        own = {name: rate for name, rate in rates.items() if rate is not None}
        tokens = len(result.token_ids)
        return TimedAnswer(text, result.prompt_tokens, tokens, first, total, pieces, own=own)


def cold_start(bundle: Path, options: list[str], timeout: float = 600) -> float:
    """Seconds of `ane-book run` in a fresh process: start, load, one token, end.

    Files that were read before may still be in the system's memory. options: of `ane-book run`.
    Raises InvalidInput with what the process said where it failed.
    """
    command = [sys.executable, "-m", "ane_book", "run", str(bundle), PROMPTS[0].text]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, "--max-tokens", "1", *options],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"{bundle}: a fresh process did not answer within {timeout:.0f} s; --no-cold leaves it "
            "out"
        ) from None
    seconds = time.perf_counter() - started
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise InvalidInput(f"{bundle}: a fresh process ended with {done.returncode}: {last[0]}")
    return seconds
