"""An HTTP server for bundles, with OpenAI's API.

    app.py         the routes
    sending.py     answers, sent while they are made
    middleware.py  what every request passes first: who may ask, how much, and what is noted of it
    jobs.py        the queue: who waits, who is at work, who has gone away
    generation.py  a session, and what its cache may keep from one prompt to the next
    pool.py        the models: loaded when asked for, unloaded when memory is short
    metrics.py     a line a request, and the counters
    json_lines.py  lines of JSON on a socket, or on stdin
    server.py      the process: ports, signals, how it stops
    api/           requests, answers and errors as OpenAI has them
    page/          the chat at `/`

Nothing is imported here: fastapi, uvicorn and prometheus-client are in the extra `serve`.
"""
