"""Calls of tools as models write them, and as OpenAI's API has them.

    tools.py         the form that a model's template gives to tools and their calls
    calls.py         calls in JSON, read while they are written
    loose.py         schemas of tools without what calls cannot be held to
    python_calls.py  calls in Python
    xml_calls.py     calls in XML
"""
