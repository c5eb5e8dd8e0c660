"""Logs of requests, a line of JSON each, and counters for Prometheus.

A line has no word of a prompt or an answer, unless the server was started to log them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
import json
import logging
import sys
import time
from typing import Any

from ane_serve.api.refusal import Refusal
from ane_serve.jobs import Jobs
from ane_serve.slots import Slots
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
RATES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

requests = logging.getLogger("ane_serve.requests")


@dataclass
class Note:
    """What is logged of one request; `facts` are the fields of its line."""

    id: str
    start: float = field(default_factory=time.monotonic)
    facts: dict[str, Any] = field(default_factory=dict)

    def refused(self, refusal: Refusal) -> None:
        """Put the code of a refusal into the line; unlike its message, it quotes nobody."""
        self.facts["error"] = refusal.code or refusal.kind

    def since(self, moment: float | None = None) -> float:
        """Seconds from the request's arrival to a moment, or to now."""
        return round((time.monotonic() if moment is None else moment) - self.start, 4)


class _MetricLines(logging.Formatter):
    """A record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {"time": datetime.fromtimestamp(record.created, UTC).isoformat()}
        facts["level"] = record.levelname.lower()
        fields = record.msg if isinstance(record.msg, dict) else {"message": record.getMessage()}
        if record.exc_info:
            fields = fields | {"traceback": self.formatException(record.exc_info)}
        return json.dumps(facts | fields)


def log_lines() -> None:
    """Have the server's loggers write to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_MetricLines())
    for name, level in (("ane_serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class _OfCaches(Collector):
    """What conversations' caches did for answers, and take, by their place."""

    def __init__(self, slots: Slots):
        self._slots = slots

    def collect(self) -> Iterator[Metric]:
        slots, places = self._slots, ("session", "memory", "disk")
        hits = CounterMetricFamily("ane_book_cache_hits", "Answers from one.", labels=["place"])
        tokens = CounterMetricFamily("ane_book_cache_tokens", "Not run again.", labels=["place"])
        for place in places:
            hits.add_metric([place], slots.hits[place])
            tokens.add_metric([place], slots.tokens[place])
        size = GaugeMetricFamily("ane_book_cache_bytes", "Of caches.", labels=["place"])
        for place, count in slots.bytes.items():
            size.add_metric([place], count)
        yield from (hits, tokens, size)


class Metrics:
    """Counts requests, and writes their lines."""

    def __init__(self, jobs: Jobs):
        self._registry = CollectorRegistry()
        into: dict[str, Any] = {"registry": self._registry, "namespace": "ane_book"}
        kinds = ["path", "status"]
        self._requests = Counter("requests", "Requests by path and status.", kinds, **into)
        self._tokens = Counter("tokens", "Tokens by kind.", ["kind"], **into)
        self._seconds = {
            "queue_s": Histogram("queue_seconds", "Before work began.", buckets=SECONDS, **into),
            "first_s": Histogram("first_token_seconds", "To text.", buckets=SECONDS, **into),
            "seconds": Histogram("request_seconds", "In all.", buckets=SECONDS, **into),
            "prefill_tps": Histogram("prefill_tps", "Tokens per second.", buckets=RATES, **into),
            "decode_tps": Histogram("decode_tps", "Tokens per second.", buckets=RATES, **into),
        }
        for name, what, now in (
            ("waiting", "Requests that wait.", lambda: jobs.waiting),
            ("running", "Requests at work.", lambda: jobs.running),
            ("loaded_models", "Models in memory.", lambda: len(jobs.pool.loaded())),
        ):
            Gauge(name, what, **into).set_function(now)
        if jobs.pool.slots is not None:
            self._registry.register(_OfCaches(jobs.pool.slots))

    def text(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def done(self, note: Note, method: str, path: str, route: str, status: int) -> None:
        """Count a request, and write its line. route: the pattern of the path, for the counter."""
        note.facts["seconds"] = note.since()
        self._requests.labels(route, status).inc()
        for kind in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            self._tokens.labels(kind.removesuffix("_tokens")).inc(note.facts.get(kind, 0))
        for name, histogram in self._seconds.items():
            if note.facts.get(name) is not None:
                histogram.observe(note.facts[name])
        head = {"id": note.id, "method": method, "path": path[:200], "status": status}
        requests.info(head | note.facts)
