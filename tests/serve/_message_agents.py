"""Requests to /v1/messages as agents write them.

A request is written by us, after what is public of the agent: the fields, their order of magnitude
and their nesting are the agent's, the words are ours. The model's name is left out.
"""

DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
DRAFT_2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
KEPT = {"cache_control": {"type": "ephemeral"}}
SAFE = 2**53 - 1  # what zod writes for any whole number


def schema(needed: str, dialect: dict = DRAFT_7, **properties: dict) -> dict:
    """The schema of a tool's arguments, closed as agents' are."""
    head = {"type": "object", "properties": properties, "required": needed.split()}
    return head | {"additionalProperties": False} | dialect


def text(said: str, **more) -> dict:
    return {"type": "text", "text": said} | more


TEXT, COUNT = {"type": "string"}, {"type": "integer", "exclusiveMinimum": 0, "maximum": SAFE}
CODE_TOOLS = [
    {"name": "Bash", "description": "Run a command.", "input_schema": schema(
        "command", command=TEXT, timeout={"type": "number"}, description=TEXT,
        run_in_background={"type": "boolean"})},
    {"name": "Read", "description": "Read a file.", "input_schema": schema(
        "file_path", DRAFT_2020, file_path=TEXT, offset=COUNT, limit=COUNT)},
    {"name": "Edit", "description": "Change a file.", "input_schema": schema(
        "file_path old_string new_string", file_path=TEXT, old_string=TEXT, new_string=TEXT,
        replace_all={"type": "boolean", "default": False})},
    {"name": "Grep", "description": "Search files.", "input_schema": schema(
        "pattern", pattern=TEXT, path=TEXT, glob=TEXT, **{"-i": {"type": "boolean"}},
        output_mode={"type": "string", "enum": ["content", "files_with_matches", "count"]})},
    {"name": "TodoWrite", "description": "Keep a list.", "input_schema": schema(
        "todos", todos={"type": "array", "items": schema(
            "content status", {}, content={"type": "string", "minLength": 1},
            status={"type": "string", "enum": ["pending", "in_progress", "completed"]})})},
    {"name": "WebFetch", "description": "Get a page.", "input_schema": schema(
        "url prompt", url={"type": "string", "format": "uri"}, prompt=TEXT)},
    {"name": "AskUserQuestion", "description": "Ask.", "input_schema": schema(
        "questions", DRAFT_2020,
        questions={"type": "array", "minItems": 1, "maxItems": 4, "items": TEXT},
        answers={"type": "object", "propertyNames": TEXT, "additionalProperties": TEXT})},
    {"name": f"mcp__{'team' * 12}__find_a_page", "description": "Of a server of tools.",
     "input_schema": {"type": "object", "properties": {"query": TEXT, "more": {}}}, **KEPT},
]  # fmt: skip
CODE_SYSTEM = [
    text("x-anthropic-billing-header: cc_version=2.1.0.000; cc_entrypoint=cli; cch=00000;"),
    text("You are an agent at a command line.", **KEPT),
    text("\nBe brief. Use the tools.", cache_control={"type": "ephemeral", "ttl": "1h"}),
]
CODE = {
    "max_tokens": 32000,
    "system": CODE_SYSTEM,
    "tools": CODE_TOOLS,
    "metadata": {"user_id": '{"device_id":"00","account_uuid":"","session_id":"0-0"}'},
    "stream": True,
}
CODE_ASK = {"role": "user", "content": [
    text("<system-reminder>\nToday is Sunday.\n</system-reminder>\n"),
    text("What is in a.txt?", **KEPT),
]}  # fmt: skip
CODE_READ = {"type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "Read",
             "input": {"file_path": "/work/a.txt"}}  # fmt: skip
CODE_GOT = {"type": "tool_result", "tool_use_id": CODE_READ["id"], "content": "1\tred\n2\tblue\n"}

CLINE_TOOLS = [
    {"name": "read_file", "description": "Read a file.", "input_schema": {
        "type": "object", "properties": {"path": TEXT}, "required": ["path"]}},
    {"name": "attempt_completion", "description": "Say that it is done.", "input_schema": {
        "type": "object", "properties": {"result": TEXT, "command": TEXT},
        "required": ["result"]}},
]  # fmt: skip
CLINE = {
    "max_tokens": 8192,
    "temperature": 0,
    "system": [text("You are an engineer.", **KEPT)],
    "tools": CLINE_TOOLS,
    "tool_choice": {"type": "any"},
    "stream": True,
}
CLINE_ASK = {"role": "user", "content": [
    text("<task>\nWhat is in a.txt?\n</task>"),
    text("<environment_details>\nNo terminal runs.\n</environment_details>", **KEPT)]}  # fmt: skip
CLINE_READ = {"type": "tool_use", "id": "abc123def", "name": "read_file",
              "input": {"path": "a.txt"}}  # fmt: skip

OPENCODE_TOOLS = [
    {"name": "read", "description": "Read a file.", "eager_input_streaming": True,
     "input_schema": schema("filePath", DRAFT_2020, filePath=TEXT, offset=COUNT)},
    {"name": "todowrite", "description": "Keep a list.", "eager_input_streaming": True,
     "input_schema": schema("todos", DRAFT_2020, todos={"type": "array", "items": schema(
         "content", {}, content=TEXT)}), **KEPT},
]  # fmt: skip
OPENCODE = {
    "max_tokens": 32000,
    "temperature": 1,
    "system": [text("You are an agent.", **KEPT), text("Here is the folder.", **KEPT)],
    "tools": OPENCODE_TOOLS,
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 16000},
    "stream": True,
}
OPENCODE_ASK = {"role": "user", "content": [text("What is in a.txt?", **KEPT)]}
OPENCODE_READ = {"type": "tool_use", "id": "toolu_bdrk_01", "name": "read",
                 "input": {"filePath": "/work/a.txt"}}  # fmt: skip

#: By agent: where is public what it sends; its requests.
AGENTS: dict[str, tuple[str, list[dict]]] = {
    "Claude Code": (
        "https://github.com/RavenStorm-bit/claude-code-api-logger and "
        "https://github.com/anthropics/claude-code/issues/77698",
        [
            {"max_tokens": 512, "temperature": 0, "stream": True, "metadata": CODE["metadata"],
             "system": [text("Give it a title.", **KEPT)],
             "messages": [{"role": "user", "content": "What is in a.txt?"}]},
            {"max_tokens": 200, "system": "Give it a title.", "thinking": {"type": "disabled"},
             "messages": [{"role": "user", "content": [text("What is in a.txt?")]}],
             "output_config": {"format": {"type": "json_schema", "schema": schema(
                 "title", {}, title={"type": "string"})}}},
            CODE | {"messages": [CODE_ASK], "temperature": 1},
            CODE | {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
                    "context_management": {"edits": [
                        {"type": "clear_thinking_20251015", "keep": "all"}]},
                    "messages": [CODE_ASK, {"role": "system", "content": "Skills: none."}]},
            CODE | {"thinking": {"type": "enabled", "budget_tokens": 31999},
                    "messages": [
                        CODE_ASK,
                        {"role": "assistant", "content": [
                            {"type": "thinking", "thinking": "I read it.", "signature": ""},
                            text("I read it."), CODE_READ]},
                        {"role": "user", "content": [
                            CODE_GOT | KEPT, text("<system-reminder>\nNo news.\n")]}]},
            CODE | {"messages": [
                CODE_ASK, {"role": "assistant", "content": [CODE_READ]},
                {"role": "user", "content": [CODE_GOT | {
                    "content": [text("No such file.")], "is_error": True}]}]},
        ],
    ),
    "Cline": (
        "https://github.com/cline/cline/blob/0162b82/src/core/api/providers/anthropic.ts",
        [
            CLINE | {"messages": [CLINE_ASK]},
            CLINE | {"messages": [
                CLINE_ASK, {"role": "assistant", "content": [text("I read it."), CLINE_READ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": CLINE_READ["id"],
                     "content": [text("red\nblue")]},
                    text("<environment_details>\nNo terminal runs.\n</environment_details>")]}]},
        ],
    ),
    "opencode": (
        "https://github.com/vercel/ai/blob/01e5998/packages/anthropic/src/"
        "convert-to-anthropic-prompt.ts",
        [
            OPENCODE | {"messages": [OPENCODE_ASK]},
            OPENCODE | {"messages": [
                OPENCODE_ASK, {"role": "assistant", "content": [OPENCODE_READ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": OPENCODE_READ["id"],
                     "content": "red\nblue", **KEPT}]}]},
        ],
    ),
}  # fmt: skip
