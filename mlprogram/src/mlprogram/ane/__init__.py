"""What Apple's Neural Engine will make of an ML Program, as far as anybody knows.

    claims/     what is said of the engine, for and against, graded; Core ML's errors and their cure
    laws/       rules that look for what it refuses or runs slowly: `check`
    faults/     what coremltools and Core ML get wrong in it, and packages written without: `faults`
    placement/  where Core ML's planner would run each op: `place`
    cost/       how long a token takes on a chip, from bytes, slots and calls
    mac/        what Core ML plans on this Mac, and where a program really runs

A program is read, not run, and torch is not imported, but for both numbers of a fault and `--fix`.
"""
