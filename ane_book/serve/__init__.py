"""A server of bundles that clients of OpenAI's API know how to talk to.

    app.py         the routes
    middleware.py  what every request passes first: who may ask, how much, and what is noted of it
    jobs.py        the queue: who waits, who is at work, who has gone away
    generation.py  a session, and what its cache may keep from one prompt to the next
    pool.py        the models: opened when asked for, let go when memory is short
    metrics.py     a line a request, and the counters
    json_lines.py  lines of JSON on a socket, or on stdin
    server.py      the process: ports, signals, the end
    api/           requests, answers and errors as OpenAI has them
    page/          the chat at `/`

Nothing is imported here: fastapi, uvicorn and prometheus-client are in the extra `serve`.
"""
