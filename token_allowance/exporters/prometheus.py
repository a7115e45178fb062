"""Prometheus: the figures of all processes of this host, at an address that a scraper reads.

With more than one process set PROMETHEUS_MULTIPROC_DIR, as prometheus_client's documentation says;
its own view then sums what every process has counted.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.django import PrometheusDjangoView

from token_allowance import conf, metrics, policy
from token_allowance.exceptions import StoreUnavailable
from token_allowance.metrics import Counted, Measured

COUNTERS = {
    metrics.CALLS_FINISHED: ("calls", "Calls finished", ("provider", "state")),
    metrics.CALLS_FLAGGED: ("calls_flagged", "Calls finished with this flag", ("provider", "flag")),
    metrics.CALLS_EXPIRED: ("calls_expired", "Calls whose lease ended without a word", ()),
    metrics.CALLS_CONFLICTING: ("calls_conflicting", "Settled twice, otherwise", ("provider",)),
    metrics.CALLS_REFUSED: ("calls_refused", "Calls refused", ("code", "provider")),
    metrics.COST_MICROS: ("cost_micros", "Charged, in micro-dollars", ("provider",)),
    metrics.ESTIMATED_MICROS: ("estimated_micros", "Of it, by estimate", ("provider",)),
    metrics.OVERAGE_MICROS: ("overage_micros", "Charged above the reservation", ("provider",)),
    metrics.INPUT_TOKENS: ("input_tokens", "Input tokens of finished calls", ("provider",)),
    metrics.OUTPUT_TOKENS: ("output_tokens", "Output tokens of finished calls", ("provider",)),
}
RESERVE_EDGES = [0.0005 * 2**power for power in range(14)]
CALL_EDGES = [0.1 * 2**power for power in range(12)]
REFUSED = (
    "Set TOKEN_ALLOWANCE['METRICS_TOKEN'] and send it as 'Authorization: Bearer …', or mount "
    "MetricsView.as_view(public=True) where only the scraper can reach it.\n"
)


class Prometheus:
    """Keeps prometheus_client's own metrics, which know how several processes share them."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._counters = {
            name: Counter(f"token_allowance_{own}", text, labels, registry=registry)
            for name, (own, text, labels) in COUNTERS.items()
        }
        self._histograms = {
            metrics.RESERVE_SECONDS: Histogram(
                "token_allowance_reserve_seconds",
                "How long a call waited for its budgets",
                ("outcome",),
                buckets=RESERVE_EDGES,
                registry=registry,
            ),
            metrics.CALL_SECONDS: Histogram(
                "token_allowance_call_seconds",
                "From the reservation to the end of the call",
                ("provider", "model"),
                buckets=CALL_EDGES,
                registry=registry,
            ),
        }
        self._behind = Gauge(
            "token_allowance_ledger_behind_seconds",
            "How long the oldest event has waited for the ledger",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._up = Gauge(
            "token_allowance_store_up",
            "Can the store and its database be asked?",
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def add(self, counted: Sequence[Counted]) -> None:
        for name, labels, more in counted:
            if counter := self._counters.get(name):
                (counter.labels(**dict(labels)) if labels else counter).inc(more)

    def measure(self, measured: Sequence[Measured]) -> None:
        for name, labels, figure in measured:
            if histogram := self._histograms.get(name):
                histogram.labels(**dict(labels)).observe(figure)

    def look(self) -> None:
        """Read what is no event: how far behind the ledger is now."""
        try:
            policy.confirmed()
            self._behind.set(conf.store().behind_seconds() or 0)
            self._up.set(1)
        except StoreUnavailable:
            self._up.set(0)


class MetricsView(PrometheusDjangoView):
    """The address to scrape. It wants METRICS_TOKEN as a bearer token, unless made ``public``."""

    public = False

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not (self.public or _has_token(request)):
            return HttpResponse(REFUSED, status=403, content_type="text/plain")
        exporter().look()
        answer: HttpResponse = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]
        return answer


def _has_token(request: HttpRequest) -> bool:
    token = conf.current().METRICS_TOKEN
    given = request.headers.get("Authorization", "")
    return bool(token) and hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


@lru_cache(maxsize=1)
def exporter() -> Prometheus:
    return Prometheus()
