"""What coremltools, Core ML and their compilers are known to get wrong, looked for in a package.

    from mlprogram.ane import faults, laws

    known = faults.load(system="macos26", coremltools="9.0")    # both may be left out
    report = laws.check("model.mlpackage", known)
    report.findings                     # each with its `Fault`: whose it is, what comes out

    versions.py   what a package says of its makers, and the systems that read it
    fault.py      `Fault`, a rule of the lint, and the reader of data/*.toml
    patterns/     what finds each: converter.py, coreml.py (other numbers), loading.py (refusals)
    numbers.py    what comes out of an op that has a fault, and what should
    fix/          a package written again with exact rewrites, proven first

Laws are of the Neural Engine; faults are of software, and come and go with its versions. A fault
of the converter stands here only if it was run; one of Core ML names system and reporter.
"""

from mlprogram.ane.faults.fault import Fault, load, mendable
from mlprogram.ane.faults.versions import Makers, makers, makers_of

__all__ = ["Fault", "Makers", "load", "makers", "makers_of", "mendable"]
