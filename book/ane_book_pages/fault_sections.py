"""Known faults and the open questions of arithmetic as HTML, for the page "Known faults"."""

from ane_book_pages.claim_sections import prose, side
from mlprogram import arithmetic
from mlprogram.ane.faults import Fault


def section(fault: Fault) -> str:
    """The fault below an anchor of its id: what comes out, who says so, what to do instead."""
    claim = fault.claim
    outcome = f"gives {fault.gives}; should give {fault.should}"
    said = claim.statement.removesuffix(f"; {outcome}")
    assert said != claim.statement
    first, rest = said.split(" ", 1)
    said = f"{first.capitalize() if first.isalpha() else first} {rest}"
    return (
        f'<section class="ane-claim" id="{fault.id}"><p><a href="#{fault.id}">'
        f"<code>{fault.id}</code></a> <strong>{prose(said)}.</strong></p>"
        f"<p>It {prose(outcome)}.</p>"
        f"<p><em>{claim.grade}</em>; {prose(claim.condition)}; {fault.severity}.</p>"
        f"{side('', claim.support)}{side('Against:', claim.against)}"
        f"<p>Instead: {prose(fault.instead)}.</p><hr></section>"
    )


def arithmetic_table() -> str:
    """What `mlprogram.arithmetic` has: described, reported, what the executor does by default."""
    rows = "".join(
        f'<tr id="{row.id}"><td><code>{row.id}</code><br>{prose(row.topic)}</td>'
        f"<td>{prose(row.documented)}</td><td>{prose(row.reported) or 'nothing'}</td>"
        f"<td>{row.default}; {row.grade}</td></tr>"
        for row in arithmetic.rows().values()
    )
    return (
        '<div class="ane-wide"><table><thead><tr><th>what</th><th>described</th>'
        "<th>reported</th><th>default; how sure</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )
