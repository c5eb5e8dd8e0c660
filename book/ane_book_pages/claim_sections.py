"""A claim as HTML, as the page "Every claim" lists it.

    from ane_book_pages import claim_sections

    claim_sections.section(claims.find("axis-most"), laws.load())

It has both sides with their sources, what would settle a conflict, and what `ane-book check` does.
"""

from collections.abc import Iterable, Mapping
from html import escape
import re

from ane_book_pages import finder, sources
from mlprogram.ane import claims
from mlprogram.ane.laws import Rule

SETTLE = "https://github.com/ane-book/ane-book/blob/main/research/conflicting-claims.md#"


def search(known: Iterable[claims.Claim]) -> str:
    """The field that searches the sections of these claims, by chip and by grade."""
    chips = {chip for claim in known for chip in sources.chips(claim)}
    return finder.field("claims", ".ane-claim", chip=sorted(chips), grade=claims.GRADES)


def section(claim: claims.Claim, rules: Mapping[str, Rule]) -> str:
    """The claim below an anchor of its id, with its rule if `check` looks for it."""
    amount = (claim.amount or "").removesuffix(" magnitude")
    amount = re.sub(r"\d\.\d{5,}e-\d+", lambda match: f"{float(match[0]):.2g}", amount)
    where = f"seen on {prose(claim.where)}" if claim.where else "chip not said"
    facts = [f"<em>{claim.grade}</em>", prose(amount), where]
    first, rest = claim.statement[0], claim.statement[1:]
    first = first if rest[0].isupper() else first.upper()  # iOS stays iOS
    parts = [
        f'<p><a href="#{claim.id}"><code>{claim.id}</code></a>'
        f" <strong>{prose(first + rest)}.</strong></p>",
        f"<p>{'; '.join(filter(None, facts))}.</p>",
        side("For:", claim.support),
        side("Against:", claim.against),
    ]
    if claim.grade == "conflicting" and claim.id in claims.load():
        parts.append(f'<p><a href="{SETTLE}{claim.id}">What would settle it</a> on a Mac.</p>')
    if rule := rules.get(claim.id):
        parts.append(
            f"<p><code>ane-book check</code>: {rule.severity}; looks at {prose(rule.looks_at)}."
            f" Instead: {prose(rule.instead)}.</p>"
        )
    chips = "; ".join(sources.chips(claim))
    return (
        f'<section class="ane-claim" id="{claim.id}" data-grade="{claim.grade}"'
        f' data-chip="{chips}">{"".join(parts)}<hr></section>'
    )


def prose(text: str) -> str:
    """As HTML: code between backticks, and a minus where a hyphen is one."""
    text = re.sub(r"(?<![\w)^])-(?=\d|inf\b)", "−", escape(text))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def side(name: str, citations: Iterable[claims.Citation]) -> str:
    """The sources of one side, each with its words, as a list below its name, if it has one."""
    items = "".join(
        f'<li><a href="{escape(one.url)}">{escape(one.name)}</a>: {prose(one.says)}</li>'
        for one in citations
    )
    return f"{name and f'<p>{name}</p>'}<ul>{items}</ul>" if items else ""
