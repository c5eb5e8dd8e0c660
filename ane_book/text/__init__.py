"""Text to tokens and back: chat templates and tokenizers, which come with the model.

Nothing is imported here: the process starts in a tenth of a second because it loads no more than
Jinja and `tokenizers`.
"""
