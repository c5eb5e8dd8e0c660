"""The rules, one small function each, by what they look at: a claim's name is its rule's name.

A function takes a `ProgramGraph` and the value of its claim, and yields what it has `Seen`. What a
rule is called, how grave it is and what to do instead stands in `rules.toml`; threshold, grade and
evidence in `ane_book.claims`.
"""
