"""How the registry of claims differs from that of a commit, in Markdown for research/facts.md.

python research/experiments/facts_since.py COMMIT
"""

from pathlib import Path
import subprocess
import sys
import tomllib

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = "mlprogram/src/mlprogram/ane/claims/claims.toml"
#: What a claim says, beside its sources.
PARTS = ("statement", "value", "unit", "grade", "chip", "os", "condition")


def table(head: list[str], rows: list[list]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def sources(claim: dict) -> str:
    return f"{len(claim.get('for', []))} for, {len(claim.get('against', []))} against"


def told(before: dict, now: dict) -> str:
    """The changes from one registry to another; claims by their names."""
    new = [
        [f"`{name}`", now[name]["statement"], now[name]["grade"]] for name in now.keys() - before
    ]
    both = [name for name in now if name in before]
    changed = [
        [f"`{name}`", part, before[name].get(part, "none"), now[name].get(part, "none")]
        for name in both
        for part in PARTS
        if before[name].get(part) != now[name].get(part)
    ]
    further = [
        [f"`{name}`", sources(before[name]), sources(now[name])]
        for name in both
        if sources(before[name]) != sources(now[name])
    ]
    gone = ", ".join(f"`{name}`" for name in sorted(before.keys() - now)) or "none"
    return f"""### New claims

{table(["claim", "what it says", "grade"], sorted(new))}

### Changed claims

{table(["claim", "part", "before", "now"], changed)}

### Further sources

{table(["claim", "before", "now"], further)}

Withdrawn: {gone}."""


def main() -> None:
    (commit,) = sys.argv[1:]
    shown = subprocess.run(["git", "show", f"{commit}:{CLAIMS}"], cwd=ROOT, capture_output=True)
    if shown.returncode:
        raise SystemExit(shown.stderr.decode())
    now = (ROOT / CLAIMS).read_text("utf-8")
    print(told(tomllib.loads(shown.stdout.decode()), tomllib.loads(now)))


if __name__ == "__main__":
    main()
