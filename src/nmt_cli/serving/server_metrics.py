"""The metrics for Prometheus, without text, addresses or keys."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest

from nmt_cli import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Each counter would have a second one with the time when it was made.
disable_created_metrics()
_SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKEN_BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ServerMetrics:
    """The server's own registry: two servers in a process do not mix."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        self.requests = counter("nmt_requests_total", "Requests answered.", ["endpoint", "code"])
        self.tokens = counter("nmt_tokens_total", "Pieces read and written, EOS counted.", ["model", "side"])
        self.dropped = counter("nmt_dropped_sentences_total", "Sentences whose client was gone.", ["model"])
        self.restarts = counter("nmt_worker_restarts_total", "Workers that died and were replaced.", ["model"])

        gauge = partial(Gauge, registry=registry)
        self.in_flight = gauge("nmt_requests_in_flight", "Requests that are being served.")
        self.queue_sentences = gauge("nmt_queue_sentences", "Sentences that wait for a batch.", ["model"])
        self.connections = gauge("nmt_connections", "Connections that are open.")
        self.workers = gauge("nmt_workers_ready", "Workers that are loaded.", ["model"])
        self.build = gauge("nmt_build_info", "Always 1.", ["version", "model"])

        seconds = partial(Histogram, buckets=_SECONDS_BUCKETS, registry=registry)
        counts = partial(Histogram, buckets=_COUNT_BUCKETS, registry=registry)
        tokens = partial(Histogram, buckets=_TOKEN_BUCKETS, registry=registry)
        about = "From the first byte of a request to the last of its answer."
        self.request_seconds = seconds("nmt_request_duration_seconds", about, ["endpoint"])
        self.queue_seconds = seconds("nmt_queue_wait_seconds", "A sentence's wait for its batch.", ["model"])
        self.inference_seconds = seconds("nmt_inference_duration_seconds", "A batch's search.", ["model"])
        self.batch_sentences = counts("nmt_batch_sentences", "Sentences in a batch.", ["model"])
        self.batch_tokens = tokens("nmt_batch_tokens", "Padded source tokens of a batch.", ["model"])

    def add_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request that was answered, or whose client is gone."""
        self.requests.labels(endpoint, str(status)).inc()
        self.request_seconds.labels(endpoint).observe(seconds)

    def name_model(self, name: str) -> None:
        """Have the model's series from the start, at zero."""
        self.build.labels(__version__, name).set(1)
        for metric in (self.queue_sentences, self.dropped, self.restarts):
            metric.labels(name)
        for side in ("source", "target"):
            self.tokens.labels(name, side)

    def render(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self._registry)
