"""How fast a model answers: five prompts, in this process or on any OpenAI-compatible server.

    from ane_serve.bench import InProcess, Server, measure

    report = measure([InProcess(session), Server("http://127.0.0.1:1234/v1")])
    print(report.text())

All subjects answer the same prompts with the same sampling, taking turns, so that what slows the
machine down slows all of them down. Everything is timed where the text arrives; rates that an
engine or a server reports itself stand beside it, and are not mixed with it.

Told of in the appendix "The libraries, name by name".
"""

from ane_serve.bench.answer import TimedAnswer
from ane_serve.bench.client import Server
from ane_serve.bench.local import InProcess, cold_start
from ane_serve.bench.measure import Asked, measure
from ane_serve.bench.prompts import PROMPTS, Prompt
from ane_serve.bench.report import BenchReport

__all__ = [
    "PROMPTS",
    "Asked",
    "BenchReport",
    "InProcess",
    "Prompt",
    "Server",
    "TimedAnswer",
    "cold_start",
    "measure",
]
