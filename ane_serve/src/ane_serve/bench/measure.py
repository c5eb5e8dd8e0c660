"""`measure`: ask every subject every prompt, several times, taking turns."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ane_book.errors import InvalidInput
from ane_serve.bench.answer import TimedAnswer
from ane_serve.bench.prompts import PROMPTS, Prompt
from ane_serve.bench.report import BenchReport, BenchSubject

MARKS = 1000  # different beginnings of a prompt

Progress = Callable[[str, int, int | None], None]


class Asked(Protocol):
    """A subject of a benchmark: `InProcess` or `Server`. where: it runs, or its address."""

    name: str
    where: str

    def ask(self, prompt: Prompt, mark: int, max_tokens: int, sampling: dict) -> TimedAnswer: ...


def measure(
    asked: Sequence[Asked],
    prompts: Sequence[Prompt] = PROMPTS,
    repeats: int = 3,
    mark: int = 0,
    max_tokens: int | None = None,
    progress: Progress = lambda *_: None,
    **sampling,
) -> BenchReport:
    """Ask all subjects, after an answer each to warm up.

    repeats: answers to every prompt. mark: the first of the numbers that prompts begin with; a
    server that is asked twice with the same ones may use its cache. max_tokens: of any answer,
    where the prompt's own limit is higher. sampling: fields of a request and of a session alike,
    such as `temperature` (0 by default) and `seed`.

    Raises InvalidInput for two subjects of one name, and what the subjects raise.
    """
    if len({one.name for one in asked}) < len(asked) or not asked:
        raise InvalidInput(f"to be told apart: {', '.join(one.name for one in asked) or 'nobody'}")
    sampling = {"temperature": 0.0} | sampling
    subjects = [BenchSubject(one.name, one.where, {p.name: [] for p in prompts}) for one in asked]
    for one in asked:
        progress(f"{one.name}: warming up", 0, None)
        one.ask(prompts[0], mark % MARKS, 2, sampling)
    done, total = 0, len(asked) * len(prompts) * repeats
    for repeat in range(1, repeats + 1):
        for prompt in prompts:
            most = min(prompt.max_tokens, max_tokens or prompt.max_tokens)
            for one, subject in zip(asked, subjects, strict=True):
                progress(f"{one.name}: {prompt.name}", done, total)
                answer = one.ask(prompt, (mark + repeat) % MARKS, most, sampling)
                subject.answers[prompt.name].append(answer)
                done += 1
    progress("asked", total, total)
    return BenchReport(subjects, repeats, sampling)
