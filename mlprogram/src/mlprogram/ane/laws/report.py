"""`LawReport`: the findings of one check, and their output as text, JSON, SARIF or annotations.

SARIF: OASIS, "Static Analysis Results Interchange Format", version 2.1.0. Annotations: GitHub,
"Workflow commands for GitHub Actions".
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill, shorten
from urllib.parse import quote

from mlprogram.ane.claims import Claim
from mlprogram.ane.laws.graph import Seen
from mlprogram.ane.laws.rule import SEVERITIES, Finding, Place, Remark, Rule, Severity
from mlprogram.errors import printable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LISTED = 100  # the most places of a finding in SARIF
SHOWN = 4  # the most findings of a rule in a text
UNSEEN = "not looked at, the numbers of weights"
HINT = "--why: who says so, every finding, notes in full"


@dataclass
class LawReport:
    """The findings of one check.

    path: what was checked. packages: how many. calibrated: whether they were run on inputs, too.
    remarks: on `side`, which is in the file `place`; their findings are shown beside those of laws
    and counted apart. unseen: for each weight file that is not there, why. Equal findings are
    merged, with all their places.
    """

    path: str
    packages: int = 0
    calibrated: bool = False
    remarks: list[Remark] = field(default_factory=list)
    side: str = ""
    place: str = ""
    unseen: list[str] = field(default_factory=list)
    _found: dict[tuple, Finding] = field(default_factory=dict, repr=False)

    def add(self, rule: Rule, seen: Seen, place: Place) -> None:
        severity = seen.severity or rule.severity
        key = (rule.id, severity, place.op, seen.text)
        self._found.setdefault(key, Finding(rule, severity, seen.text)).places.append(place)

    @property
    def findings(self) -> list[Finding]:
        """The findings, the most severe first, then in the order of packages and ops."""
        return sorted(self._found.values(), key=lambda found: SEVERITIES.index(found.severity))

    def count(self, severity: Severity) -> int:
        return sum(found.severity == severity for found in self._found.values())

    def fails(self, level: Severity) -> bool:
        """Whether there is a finding of this severity or a higher one."""
        found = {each.severity for each in self._found.values()}
        found |= {each.severity for each in self.remarks}
        return not found.isdisjoint(SEVERITIES[: SEVERITIES.index(level) + 1])

    def to_json(self) -> dict:
        """The report in plain JSON values."""
        return {
            "checked": self.path,
            "packages": self.packages,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "findings": [found.to_json() for found in self.findings],
            "unseen": self.unseen,
        }

    def text(self, width: int = 100, why: bool = False) -> str:
        """The report as text, a note on one line; why: with sources, and all of every finding."""
        groups: dict[tuple[str, str], list[Finding]] = {}
        for found in self.findings:
            groups.setdefault((found.severity, found.rule.id), []).append(found)
        grave, notes = list[str](), list[str]()
        for (severity, _), group in groups.items():
            if severity == "note" and not why:
                notes.append(_note(group, width))
            else:
                grave.append(_block(group, width, self.packages > 1, why))
        end = self.summary if why or not groups else f"{HINT}\n{self.summary}"
        if self.remarks:
            end += f"; {counted(one.severity for one in self.remarks)} in {self.side}"
        remarks = [_filled(printable(str(one)), width) for one in self.remarks]
        unseen = [_filled(printable(f"{UNSEEN}: {why}"), width) for why in self.unseen]
        return "\n\n".join([*remarks, *grave, *(["\n".join(notes)] if notes else []), *unseen, end])

    @property
    def summary(self) -> str:
        found = counted(found.severity for found in self.findings) or "nothing found"
        return f"{found} in {self.packages:,} package{'s' * (self.packages != 1)}"

    def annotations(self) -> Iterator[str]:
        """A workflow command for each finding, which GitHub shows beside a change."""
        for found in self.findings:
            file, line = self._source(found.places[0])
            claim = found.rule.claim
            text = f"{found.where}: {found.seen}. {claim.statement}. Instead: {found.rule.instead}."
            title = f"{found.rule.id} ({_limits(claim)})"
            yield annotation(found.severity, file, line, title, text)
        for one in self.remarks:
            yield annotation(one.severity, self.place, 0, one.name, one.text)
        for why in self.unseen:
            yield annotation("warning", self.path, 0, UNSEEN, why)

    def sarif(self) -> dict:
        """The report as a SARIF 2.1.0 log, for GitHub's code scanning and other readers."""
        rules = list({found.rule.id: found.rule for found in self.findings}.values())
        index = {rule.id: number for number, rule in enumerate(rules)}
        driver = {
            "name": "mlprogram",
            "rules": [_sarif_rule(rule) for rule in rules],
        }
        results = [
            {
                "ruleId": found.rule.id,
                "ruleIndex": index[found.rule.id],
                "level": found.severity,
                "message": {"text": f"{found.seen}: {found.rule.claim.statement}"},
                "locations": [self._location(place) for place in found.places[:LISTED]],
                "occurrenceCount": len(found.places),
            }
            for found in self.findings
        ]
        place = {"physicalLocation": {"artifactLocation": {"uri": self.place}}}
        results += [
            {
                "ruleId": one.name,
                "level": one.severity,
                "message": {"text": one.text},
                "locations": [place],
            }
            for one in self.remarks
        ]
        run = {"tool": {"driver": driver}, "results": results, "columnKind": "utf16CodeUnits"}
        return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}

    def _source(self, place: Place) -> tuple[str, int]:
        """The file and line to show a place at: its torch source, or the package and 0."""
        file, _, line = place.line.rpartition(":")
        if file and line.isdecimal():
            return file, int(line)
        return self.file(place), 0

    def file(self, place: Place) -> str:
        """The package of a place, as a path."""
        within = self.path != place.package and Path(self.path).is_dir()
        return str(Path(self.path) / place.package) if within else place.package

    def _location(self, place: Place) -> dict:
        file, line = self._source(place)
        physical: dict = {"artifactLocation": {"uri": quote(Path(file).as_posix())}}
        if line:
            physical["region"] = {"startLine": line}
        location: dict = {"physicalLocation": physical}
        if place.function:
            name = f"{place.function}/{place.name}" if place.name else place.function
            location["logicalLocations"] = [{"fullyQualifiedName": name, "kind": "function"}]
        return location


def counted(severities: Iterable[Severity]) -> str:
    """How many there are of each severity, the gravest first: "1 error, 2 notes"; "" of none."""
    counts = Counter(severities)
    return ", ".join(
        f"{n} {severity}{'s' * (n != 1)}" for severity in SEVERITIES if (n := counts[severity])
    )


def annotation(severity: Severity, file: str, line: int, title: str, text: str) -> str:
    """One workflow command, which GitHub shows beside a line; line 0: beside the whole file."""
    word = "notice" if severity == "note" else severity
    at = f"file={_property(file)}" + (f",line={line}" if line else "")
    return f"::{word} {at},title={_property(title)}::{_message(text)}"


def _block(group: list[Finding], width: int, named: bool, why: bool) -> str:
    """The findings of a rule as paragraphs: the law, the first findings, what to do about them.

    why: also the law's sources, and all findings.
    """
    rule, severity, claim = group[0].rule, group[0].severity, group[0].rule.claim
    on = ", ".join(filter(None, (claim.chip, claim.os)))
    evidence = claim.evidence + (f"; seen on {on}" if on else "")
    brief = _limits(claim)
    if claim.against and claim.grade != "conflicting":
        brief += "; reports against"
    law = f"{severity} {rule.id}: {claim.statement} ({evidence if why else brief})"
    paragraphs = [_filled(law, width)]
    shown = len(group) if why else SHOWN
    for found in group[:shown]:
        package = f"{found.places[0].package}: " if named else ""
        text = printable(f"{package}{found.where}: {found.seen}".replace("\n", " "))
        paragraphs.append(_indented(text, width))
        if found.numbers:
            paragraphs.append(_filled(printable(found.numbers.text()), width, "    "))
    if group[shown:]:
        paragraphs.append(f"  and {len(group[shown:]):,} more")
    paragraphs.append(_indented(f"instead: {rule.instead}", width))
    return "\n".join(paragraphs)


def _note(group: list[Finding], width: int) -> str:
    """The findings of a note on one line: how many there are, and the law as far as it goes."""
    many = f" ({len(group):,})" if len(group) > 1 else ""
    text = f"note {group[0].rule.id}{many}: {group[0].rule.claim.statement}"
    return shorten(text, width, placeholder=" ...")


def _limits(claim: Claim) -> str:
    return f"{claim.grade}, {claim.condition}" if claim.condition else claim.grade


def _filled(text: str, width: int, indent: str = "") -> str:
    return fill(
        text, width, initial_indent=indent, subsequent_indent="    ", break_long_words=False
    )


def _indented(text: str, width: int) -> str:
    return _filled(text, width, "  ")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _message(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _sarif_rule(rule: Rule) -> dict:
    claim = rule.claim
    return {
        "id": rule.id,
        "shortDescription": {"text": claim.statement},
        "fullDescription": {"text": f"{claim.statement} ({claim.evidence})"},
        "help": {"text": f"Looks at: {rule.looks_at}. Instead: {rule.instead}."},
        "helpUri": claim.support[0].url,
        "defaultConfiguration": {"level": rule.severity},
        "properties": {
            "grade": claim.grade,
            "chip": claim.chip,
            "os": claim.os,
            "condition": claim.condition,
        },
    }
