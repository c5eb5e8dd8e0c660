"""The ten tasks of `agent_tasks.py`: every call keeps its form, whoever writes it."""

import json
from pathlib import Path

from _common import MODEL, bundle
from _long import long_but
from _scripted import scripted, talking
from _serving import serving
from _tool_templates import SPECIAL, TOOL_TEMPLATES, written
from agent_tasks import TASKS, Task, run
from ane_serve.pool import bundle_model
from ane_serve.tools.tools import tool_form
import openai
import pytest

RECORD = Path(__file__).parents[2] / "research" / "measurements" / "agent_tasks.json"


def follows(family: str):
    """What a model of a family says: the next turn of the task that its prompt is of."""
    form = tool_form(TOOL_TEMPLATES[family])

    def say(prompt: str) -> str:
        (task,) = [each for each in TASKS if each.asks in prompt]
        at, left = 0, prompt.count(f"{task.result};") + prompt.count(f"{task.result}<")
        while at < len(task.calls) and left:
            left -= len(task.calls[at])
            at += 1
        calls = task.calls[at : at + 1]
        return written(form, *calls[0]) if calls else task.answer

    return say


@pytest.fixture(scope="module")
def address(tiny_bundle, tmp_path_factory):
    """A server of a model of each family that follows the script, and of some that do not."""
    changes = (("max_position_embeddings", 4096), ("vocab_size", 261))
    small = tiny_bundle("llama", changes, kv="state", context=4096, prefill=256)[1]
    models = []
    for family, template in TOOL_TEMPLATES.items():
        folder = tmp_path_factory.mktemp("tasks")
        made = talking(small, folder, template, SPECIAL.get(family, []))
        models.append(scripted(made, family, follows(family)))
    with serving(*models) as address:
        yield address


CASES = [(family, task) for family in TOOL_TEMPLATES for task in TASKS]
QUICK = [("llama-3.1", TASKS[0]), *(("qwen2.5", task) for task in TASKS)]


@pytest.mark.parametrize(
    ("family", "task"), long_but(CASES, *QUICK), ids=lambda each: getattr(each, "asks", each)[:20]
)
def test_a_model_that_follows_the_script(client, family, task: Task):
    """Its calls are run, its answer comes; Llama's form has one call a turn, so one is missing."""
    turns = run(client, family, task, stream=True)
    expected = [call for calls in task.calls for call in calls]
    expected = expected[:1] if family == "llama-3.1" and len(task.calls[0]) > 1 else expected
    assert [(name, json.loads(arguments)) for name, arguments in turns.calls] == expected
    assert all(turns.valid) and turns.right
    assert turns.answer == task.answer


@pytest.mark.long
def test_the_real_model_keeps_the_form_every_time():
    """And calls as it did when the record was made: greedily, on the same programs."""
    with (
        serving(bundle_model(bundle(), MODEL, backend="mil")) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        found = [run(client, MODEL, task, several=False) for task in TASKS]
    kept = json.loads(RECORD.read_text())
    assert all(turns.calls and all(turns.valid) for turns in found)
    assert kept["valid"] == kept["calls"] and kept["tasks"] == len(TASKS)
    assert abs(sum(len(turns.calls) for turns in found) - kept["calls"]) <= 3  # a near-tie
