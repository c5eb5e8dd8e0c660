"""Texts with private data that nobody has: who trains on them knows where every span is.

people.py       names, streets and numbers of a locale; names made up letter by letter
values.py       what stands in a slot: private values, and look-alikes that are not
dates.py        a day, as it is written in seven languages
words.py        words that values are made of
lexicon.py      ordinary words, in which nothing is private
templates.py    lines with slots and choices: templates/*.txt, some of them held out
forms.py        texts that have fields
documents.py    all of that, and noise
"""
