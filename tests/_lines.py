"""How the long runs of foreign tests write their records."""

import json


def lines(value, depth: int) -> str:
    """JSON with a line for each entry of tables, down to a depth."""
    if not depth or not isinstance(value, dict):
        return json.dumps(value)
    entries = (f"{json.dumps(key)}: {lines(entry, depth - 1)}" for key, entry in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"
