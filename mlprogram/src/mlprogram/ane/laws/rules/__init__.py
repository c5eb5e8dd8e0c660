"""The rules, one small function each, grouped by subject; a rule has the name of its claim.

A function takes a `ProgramGraph`, or a `Package`, and the value of its claim, and yields `Seen`.
`rules.toml` has each rule's severity and advice; `mlprogram.ane.claims` its statement, threshold,
grade and evidence.
"""
