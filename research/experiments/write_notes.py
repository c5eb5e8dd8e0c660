"""Write research/conflicting-claims.md: each conflicting claim, both sides, what would settle it.

Both sides come from the registry of claims, the experiments from the scripts beside this one.
"""

from pathlib import Path

from ane_book_pages.reports.experiments import asked
from mlprogram.ane import claims

FOLDER = Path(__file__).parent
HEAD = """# Claims with evidence on both sides

Nobody of this project has measured any of these. Each has a script that would settle it on a Mac,
`python research/experiments/settle_NAME.py`; `--dry-run` runs it without one. This file is written
by `make notes` from `mlprogram/src/mlprogram/ane/claims/claims.toml`.
"""


def experiments() -> dict[str, list[tuple[str, str]]]:
    """Claim -> the scripts that ask it, each with what follows its first line."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(FOLDER.glob("settle_*.py")):
        named, said, _ = asked(path)
        for claim in named:
            found.setdefault(claim, []).append((path.name, said))
    return found


def side(title: str, evidence) -> list[str]:
    rows = [f"- [{one.name}]({one.url}): {one.says}" for one in evidence]
    return [f"**{title}**", "", *(rows or ["- nothing found"]), ""]


def section(claim: claims.Claim, scripts: list[tuple[str, str]]) -> list[str]:
    lines = [f"## {claim.id}", "", f"**Claim.** {claim.statement[0].upper()}{claim.statement[1:]}."]
    lines[-1] += f" Seen on {claim.where}." if claim.where else ""
    lines += ["", *side("Evidence for", claim.support), *side("Evidence against", claim.against)]
    lines += ["**The experiment**", ""]
    lines += [f"- [{name}](experiments/{name}): {said}" for name, said in scripts]
    return [*lines, ""]


def main() -> None:
    scripts, lines = experiments(), [HEAD]
    for claim in claims.load().values():
        if claim.grade == "conflicting":
            lines += section(claim, scripts.get(claim.id, []))
    (FOLDER.parent / "conflicting-claims.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
