"""Ten tasks for an agent, always the same: how often a call keeps its form, and is the right one.

    python research/measurements/agent_tasks.py

The default model answers through the server, by the `openai` package, greedily. In the first turn
of a task it has to call a tool; the results go back, and then it may call again or answer, for at
most three turns, with one call each. A call is valid where its tool was offered and its arguments
keep its schema. `tests/serve/test_tasks.py` runs the same tasks, also by a script.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
import json
from pathlib import Path
import sys
from threading import Thread

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MODEL, bundle, record
from ane_serve.app import create_app
from ane_serve.pool import bundle_model
from ane_serve.server import listener
import jsonschema
import openai
import uvicorn

TURNS, MOST = 3, 256  # of a task; tokens of an answer
WORD = {"type": "string", "minLength": 1, "maxLength": 24}
TEXT = {"type": "string", "minLength": 1, "maxLength": 60}


def tool(name: str, description: str, optional: tuple[str, ...] = (), **properties) -> dict:
    parameters = {
        "type": "object", "properties": properties, "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
    }  # fmt: skip
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


WEATHER = tool("weather", "The weather of a city.", city=WORD)
TIME = tool("time", "The time of day in a city.", city=WORD)
SUM = tool("calculate", "Compute with two numbers.", a={"type": "number"}, b={"type": "number"},
           operation={"enum": ["add", "subtract", "multiply", "divide"]})  # fmt: skip
LIST = tool("list_files", "The names of the files in a folder.", folder=WORD)
READ = tool("read_file", "The text of a file.", path=WORD)
WRITE = tool("write_file", "Write a text into a file.", path=WORD, text=TEXT)
MAIL = tool("send_mail", "Send a mail.", to={"type": "array", "items": WORD, "minItems": 1,
            "maxItems": 3}, subject=TEXT, text=TEXT)  # fmt: skip
CONVERT = tool("convert", "Convert a length.", value={"type": "number"},
               unit={"enum": ["km", "mile", "m", "foot"]},
               into={"enum": ["km", "mile", "m", "foot"]})  # fmt: skip
SEARCH = tool("search", "Search the documents.", ("most",), words=TEXT,
              most={"type": "integer", "minimum": 1, "maximum": 20})  # fmt: skip
REMIND = tool("remind", "Remind of something.", ("urgent",), what=TEXT,
              when={"type": "object", "properties": {
                  "day": {"enum": ["today", "tomorrow"]},
                  "hour": {"type": "integer", "minimum": 0, "maximum": 23}},
                  "required": ["day", "hour"], "additionalProperties": False},
              urgent={"type": "boolean"})  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What a user wants, with the tools offered, the calls of each turn that would be right, the
    result of every call, and the answer at last; the last three are the script's."""

    asks: str
    tools: tuple[dict, ...]
    calls: tuple[tuple[tuple[str, dict], ...], ...]
    result: str
    answer: str


TASKS = (
    Task("What is the weather in Rome?", (WEATHER, TIME),
         ((("weather", {"city": "Rome"}),),), "21 degrees, sunny", "Sunny, at 21 degrees."),
    Task("How much is 17 times 23?", (SUM, WEATHER),
         ((("calculate", {"a": 17, "b": 23, "operation": "multiply"}),),), "391", "It is 391."),
    Task("What time is it in Tokyo?", (TIME, SEARCH),
         ((("time", {"city": "Tokyo"}),),), "14:05", "It is five past two."),
    Task("How many feet are 3 km?", (CONVERT, SUM),
         ((("convert", {"value": 3, "unit": "km", "into": "foot"}),),), "9842.5", "9842.5 feet."),
    Task("Which files are in the folder docs, and what does the first one say?", (LIST, READ),
         ((("list_files", {"folder": "docs"}),), (("read_file", {"path": "docs/a.txt"}),)),
         "docs/a.txt", "It says its own name."),
    Task("Write the word hello into hello.txt.", (WRITE, READ),
         ((("write_file", {"path": "hello.txt", "text": "hello"}),),), "done", "Written."),
    Task("Is it warmer in Rome or in Paris?", (WEATHER,),
         ((("weather", {"city": "Rome"}), ("weather", {"city": "Paris"})),),
         "21 degrees", "It is the same."),
    Task("Mail Ann and Bob that lunch is at noon.", (MAIL, REMIND),
         ((("send_mail", {"to": ["Ann", "Bob"], "subject": "Lunch", "text": "It is at noon."}),),),
         "sent", "They know."),
    Task("Remind me tomorrow at nine to call the bank. It is urgent.", (REMIND, MAIL),
         ((("remind", {"what": "call the bank", "when": {"day": "tomorrow", "hour": 9},
                       "urgent": True}),),), "noted", "I will."),
    Task("Find what the documents say about the cache, five hits at most.", (SEARCH, READ),
         ((("search", {"words": "the cache", "most": 5}),),), "cache.md", "See cache.md."),
)  # fmt: skip


@dataclass(frozen=True)
class Turns:
    """What came of a task: its calls, which of them are valid, and its last answer."""

    calls: list[tuple[str, str]]
    valid: list[bool]
    answer: str | None
    right: bool

    @classmethod
    def of(cls, task: Task, calls: list[tuple[str, str]], answer: str | None) -> "Turns":
        first = {name for name, _ in task.calls[0]}
        right = bool(calls) and calls[0][0] in first
        return cls(calls, [valid(task, *call) for call in calls], answer, right)


def valid(task: Task, name: str, arguments: str) -> bool:
    """Whether a call is of a tool of the task, with arguments of its schema."""
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in task.tools}
    try:
        jsonschema.validate(json.loads(arguments), schemas[name])
    except (KeyError, ValueError, jsonschema.ValidationError):
        return False
    return True


def run(
    client: openai.OpenAI, model: str, task: Task, stream: bool = False, several: bool = True
) -> Turns:
    """An agent's loop: call, run, answer. several: more than one call a turn is allowed."""
    messages: list[dict] = [{"role": "user", "content": task.asks}]
    calls: list[tuple[str, str]] = []
    ask: Callable = whole if not stream else streamed
    for turn in range(TURNS):
        choice = "auto" if turn else "required"
        how = {"tools": list(task.tools), "tool_choice": choice, "temperature": 0}
        how |= {"max_tokens": MOST, "parallel_tool_calls": several}
        message = ask(client, model=model, messages=messages, **how)
        if not message.get("tool_calls"):
            return Turns.of(task, calls, message["content"])
        messages.append(message)
        for call in message["tool_calls"]:
            calls.append((call["function"]["name"], call["function"]["arguments"]))
            if not valid(task, *calls[-1]):  # no agent could run it
                return Turns.of(task, calls, None)
            result = {"role": "tool", "tool_call_id": call["id"], "content": task.result}
            messages.append(result)
    return Turns.of(task, calls, None)


def whole(client: openai.OpenAI, **asked) -> dict:
    message = client.chat.completions.create(**asked).choices[0].message
    return message.model_dump(exclude_none=True)


def streamed(client: openai.OpenAI, **asked) -> dict:
    """The same message, put together of a stream by the client."""
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    made = message.model_dump(exclude_none=True, exclude={"parsed"})
    for call in made.get("tool_calls", ()):
        call["function"].pop("parsed_arguments", None)
    return made


def main() -> None:
    app = create_app([bundle_model(bundle(), MODEL, backend="mil")])
    listening = listener()
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    try:
        with openai.OpenAI(base_url=url, api_key="none", timeout=600) as client:
            found = [run(client, MODEL, task, several=False) for task in TASKS]
    finally:
        app.state.jobs.close()
        server.should_exit = True
        thread.join()
    each = [{"asks": t.asks, "calls": f.calls, "valid": f.valid, "right": f.right}
            for t, f in zip(TASKS, found, strict=True)]  # fmt: skip
    counts = Counter(good for turns in found for good in turns.valid)
    totals = {"tasks": len(TASKS), "calls": counts.total(), "valid": counts[True]}
    totals["right_tool_first"] = sum(turns.right for turns in found)
    print(totals)
    record("agent_tasks", {"model": MODEL, **totals, "each": each})


if __name__ == "__main__":
    main()
