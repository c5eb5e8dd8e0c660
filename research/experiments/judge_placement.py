"""Hold predictions of placement against what they were not fitted to, beside simple rules.

    python research/experiments/judge_placement.py      # prints the tables of research/placement.md

Left out are a half of an M4's graphs, parted by families of ops, and each of five networks
on an M4 Pro and an M5 Max. Where what was left out and what was fitted share an op's type and work,
that op is not counted.
"""

import json
from pathlib import Path

from ane_book_pages.segmenter import held_out as judged
from ane_book_pages.segmenter.networks import read_plans
from ane_book_pages.segmenter.published import read_graphs

ROOT = Path(__file__).resolve().parents[2]
MEASUREMENTS = ROOT / "research/measurements"
CHIPS = {"m4-pro": "M4 Pro", "m5-max": "M5 Max"}


def choices(left_out: list[judged.LeftOut], of: str) -> str:
    """Choices met, open and missed by each rule, as Markdown. of: "graphs" or "ops"."""
    names = [*left_out[0].counts]
    lines = [f"| left out | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for each in left_out:
        rows = (each.counts[name] for name in names)
        cells = [
            f"{row[f'{of} exact'] + row.get(f'{of} equal', 0)}, {row[f'{of} depends']}, "
            f"{row[f'{of} missed']}"
            for row in rows
        ]
        lines.append(f"| {each.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def errors(left_out: list[judged.LeftOut]) -> str:
    """The factors between single estimates and what was published, as Markdown."""
    lines = ["| left out | estimates | fitted: median, 90th percentile | within its range | "
             "roofline: median, 90th percentile |", "|---" * 5 + "|"]  # fmt: skip
    for each in left_out:
        ours, bare = each.errors["fitted"], each.errors["roofline"]
        lines.append(
            f"| {each.name} | {ours.count} | {ours.median:.2f}, {ours.ninth:.2f} | "
            f"{100 * ours.within:.0f} % | {bare.median:.2f}, {bare.ninth:.2f} |"
        )
    return "\n".join(lines)


def shares(rows: list[dict]) -> str:
    """Where the plans put five networks, by share of cost, as Markdown."""
    lines = ["| network | allowed | M4 Pro | M5 Max |", "|---|---|---|---|"]
    for row in (row for row in rows if row["chip"] == "m4-pro"):
        other = next(r for r in rows if r["chip"] == "m5-max"
                     and all(r[key] == row[key] for key in ("network", "units")))  # fmt: skip
        cells = [
            ", ".join(f"{device} {100 * part:.0f} %" for device, part in each["by_cost"].items())
            for each in (row, other)
        ]
        lines.append(f"| {row['network']} | {row['units']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def reported(rows: list[dict]) -> str:
    """How the reports of others are met by each rule, as Markdown."""
    rules = {"place": "predicted", "roofline alone": "roofline",
             "ANE from 2 MB of weights": "weights"}  # fmt: skip
    said = {name: [row[key] for row in rows] for name, key in rules.items()}
    said["all on the ANE"] = ["ANE"] * len(rows)
    lines = ["| rule | hits | open | missed |", "|---|---|---|---|"]
    for name, found in said.items():
        hits = sum(a == row["reported"] for a, row in zip(found, rows, strict=True))
        opened = found.count("depends")
        lines.append(f"| {name} | {hits} | {opened} | {len(rows) - hits - opened} |")
    return "\n".join(lines)


def tables() -> list[str]:
    """Every table of the note that comes from here, in its order."""
    graphs = read_graphs(MEASUREMENTS / "segmenter_estimates.json")
    path = MEASUREMENTS / "network_plans.json"
    plans = read_plans(path)
    parts = [*judged.halves(graphs)]
    networks = [each for chip in CHIPS
                for each in judged.networks_left_out(plans, graphs, chip)]  # fmt: skip
    return [
        choices(parts, "graphs"), choices(parts, "ops"), errors(parts),
        choices(networks, "ops"), errors(networks),
        reported(json.loads((MEASUREMENTS / "placement_reports.json").read_text())["reports"]),
        shares(json.loads(path.read_text())["shares"]),
    ]  # fmt: skip


if __name__ == "__main__":
    print("\n\n".join(tables()))
