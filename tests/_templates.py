"""The chat templates that tests of segments try: those of templates/, and SmolLM2's."""

from pathlib import Path
import tomllib

from _smollm2_tokenizer import smollm2

FOLDER = Path(__file__).parent / "text" / "templates"
#: Of each template in templates/: whose it is, and why it is refused.
TEMPLATES = tomllib.loads((FOLDER / "templates.toml").read_text(encoding="utf-8"))
EXPRESSED = ["smollm2", *(name for name, entry in TEMPLATES.items() if "refused" not in entry)]


def template(name: str) -> str:
    if name == "smollm2":
        return smollm2().chat_template
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
