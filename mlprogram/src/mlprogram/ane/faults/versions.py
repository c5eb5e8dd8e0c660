"""What a package says of its makers, and whether a fault is one of theirs.

Systems are compared by generation, since one Core ML serves them all: macOS 15 and iOS 18 are
generation 18, and from 26 on the numbers agree.
"""

from dataclasses import dataclass
from pathlib import Path
import re

from mlprogram.ane import laws
from mlprogram.errors import InvalidInput
from mlprogram.package.reader import Package, read_programs

#: What coremltools writes into a package's metadata, below this name.
OF_COREMLTOOLS = "com.github.apple.coremltools."
#: The last macOS before its number became that of iOS -> the iOS of the same year: 15 -> 18.
YEARS_APART = 3
NAMED_ALIKE = 26
VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(dev|a|b|rc)(\d+))?")
SYSTEM = re.compile(r"(macos|ios)(\d+)(?:\.(\d+))?")
LAST = 999  # past every minor version
KNOWN = (*range(13, 19), 26, 27)  # generations; those between were never named
#: Version of the specification -> the first generation that reads it.
GENERATIONS = {6: 15, 7: 16, 8: 17, 9: 18, 10: 26}


@dataclass(frozen=True)
class Makers:
    """What a package names; "" or None is unknown.

    coremltools: its version. source: what was converted, as "torch==2.13.0", or "milinternal" for
    a program that was built op by op. least: the first generation of systems that reads it.
    """

    coremltools: str = ""
    source: str = ""
    least: int | None = None

    def readable(self, system: str) -> bool:
        """Whether a system may read it, as far as is known."""
        return self.least is None or span(system)[1][0] >= self.least

    @property
    def text(self) -> str:
        """One line: "made by coremltools 9.0 from torch==2.13.0, for macOS 15, iOS 18 and up"."""
        by = f"made by coremltools {self.coremltools}" if self.coremltools else "maker not named"
        of = f" from {self.source}" if self.source else ""
        if self.least is None:
            return f"{by}{of}, for unknown systems"
        return f"{by}{of}, for {systems_of(self.least)} and up"


def makers_of(package: Package) -> Makers:
    """The makers that a package names in its metadata, and the systems of its specification."""
    said = package.description.metadata.userDefined

    def named(what: str) -> str:
        return said.get(OF_COREMLTOOLS + what, "")

    version = named("version")
    least = GENERATIONS.get(package.specification_version)
    return Makers(version if VERSION.fullmatch(version) else "", named("source"), least)


def makers(path: str | Path) -> dict[str, Makers]:
    """The makers of a package, or of all in a folder, by its path; raises InvalidPackage."""
    return {
        str(file): makers_of(package)
        for file in laws.packages_of(Path(path))
        for package in read_programs(file)
    }


def version(text: str) -> tuple[int, ...]:
    """A version of coremltools, to compare: "9.1.dev1" comes before "9.1"; raises InvalidInput."""
    match = VERSION.fullmatch(text)
    if match is None:
        raise InvalidInput(f"coremltools {text!r}: a version is wanted, such as 9.0")
    major, minor, patch, kind, number = match.groups()
    stage = (None, "dev", "a", "b", "rc").index(kind) if kind else 9
    return int(major), int(minor), int(patch or 0), stage, int(number or 0)


def span(system: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first and the last (generation, minor version) that a name may mean.

    "macos15.4" is (18, 4) alone, "ios26" all from (26, 0). Raises InvalidInput for another word,
    and for a system that is not known.
    """
    match = SYSTEM.fullmatch(system.lower())
    if match is None:
        raise InvalidInput(f"system {system!r}: one such as macos26, macos15.4 or ios18 is wanted")
    name, major, minor = match[1], int(match[2]), match[3]
    number = major + (YEARS_APART if name == "macos" and major < NAMED_ALIKE else 0)
    if number not in KNOWN:
        raise InvalidInput(
            f"system {system!r}: no such system is known; name one of macos12 to macos15, ios15 to "
            f"ios18, and {' or '.join(f'macos{one}, ios{one}' for one in KNOWN if one > 18)}"
        )
    return (number, int(minor or 0)), (number, LAST if minor is None else int(minor))


def systems_of(number: int) -> str:
    """The systems of a generation: 18 -> "macOS 15, iOS 18"."""
    mac = number if number >= NAMED_ALIKE else number - YEARS_APART
    return f"macOS {mac}, iOS {number}"
