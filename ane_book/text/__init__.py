"""Text to tokens and back: chat templates and tokenizers, which come with the model.

    chat.py         a conversation laid out by the model's own template
    process.py      runs both in a process with limits, since they are code of the model's maker
    worker.py       what runs in that process
    token_bytes.py  what each token adds to a text
    layout.py       a template as the texts around contents, for hosts without Jinja

Nothing is imported here: the process starts in a tenth of a second because it loads no more than
Jinja and `tokenizers`.
"""
