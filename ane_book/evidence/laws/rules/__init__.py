"""The rules, one small function each, grouped by subject; a rule has the name of its claim.

A function takes a `ProgramGraph` and the value of its claim, and yields `Seen`. `rules.toml` has
each rule's title, severity and advice; `ane_book.claims` its threshold, grade and evidence.
"""
