"""What a file of claims has to hold, each of which is asserted of one claim."""

from mlprogram.ane.claims import ADDRESS, FILE, GRADES, THREAD, Claim


def check(claim: Claim) -> None:
    assert claim.statement and claim.grade in GRADES and claim.support, claim.id
    assert claim.grade != "conflicting" or claim.against, claim.id
    assert claim.value is None or claim.unit, claim.id
    for one in (*claim.support, *claim.against):
        assert any(form.fullmatch(one.source) for form in (FILE, THREAD, ADDRESS)), one
        assert one.says, one
    for one in claim.support:
        for number in one.values:
            low, high = claim.bounds
            assert low <= number <= high, (claim.id, one)
