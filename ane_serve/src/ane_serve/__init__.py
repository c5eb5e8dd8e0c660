"""An HTTP server for bundles, with OpenAI's API and Anthropic's.

    app.py         the routes
    sending.py     answers, sent while they are made
    middleware.py  what every request passes first: who may ask, how much, and what is noted of it
    jobs.py        the queue: who waits, who is at work, who has gone away
    generation.py  a session, and what its cache may keep from one prompt to the next
    pool.py        the models: loaded when asked for, unloaded when memory is short
    metrics.py     a line a request, and the counters
    json_lines.py  lines of JSON on a socket, or on stdin
    server.py      the process: ports, signals, how it stops
    api/           requests, answers and errors as OpenAI and Anthropic have them
    page/          the chat at `/`
    llama_cache.py a session's cache as llama.cpp's file, and back

    tools/         calls of tools as models write them
    bench/         how fast a model answers, here and on any server of that API
    cluster/       one model over several machines, with Ray
    cli/           the commands `serve` and `bench` of `ane-book`

Nothing is imported here.
"""

__version__ = "0.2.0"
