"""OpenTelemetry metrics, by the GenAI semantic conventions where they have a name for it.

``gen_ai.client.token.usage`` and ``gen_ai.client.operation.duration`` are theirs (status
development, names of November 2026); what budgets add is under ``token_allowance.``. Only the API
is needed: without an SDK that the host sets up, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from opentelemetry import metrics as otel
from opentelemetry.metrics import CallbackOptions, Observation

from token_allowance import conf, metrics
from token_allowance.exceptions import StoreUnavailable
from token_allowance.metrics import Counted, Labels, Measured

COUNTERS = {
    metrics.CALLS_FINISHED: ("calls", "{call}", "Calls finished"),
    metrics.CALLS_FLAGGED: ("calls.flagged", "{call}", "Calls finished with this flag"),
    metrics.CALLS_EXPIRED: ("calls.expired", "{call}", "Calls whose lease ended without a word"),
    metrics.CALLS_CONFLICTING: ("calls.conflicting", "{call}", "Calls settled twice, otherwise"),
    metrics.CALLS_REFUSED: ("calls.refused", "{call}", "Calls refused"),
    metrics.COST_MICROS: ("cost", "{microdollar}", "What finished calls were charged"),
    metrics.ESTIMATED_MICROS: ("cost.estimated", "{microdollar}", "Of it, by estimate"),
    metrics.OVERAGE_MICROS: ("cost.overage", "{microdollar}", "Charged above the reservation"),
}
TOKEN_EDGES = [float(4**power) for power in range(14)]  # both lists as the conventions give them
SECOND_EDGES = [0.01 * 2**power for power in range(14)]
RESERVE_EDGES = [0.0005 * 2**power for power in range(14)]
NAMES = {
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "type": "gen_ai.token.type",
}
OPERATION = ("gen_ai.operation.name", "chat")  # the ledger does not tell other kinds apart


class OpenTelemetry:
    """Passes everything on to the host's meter provider."""

    def __init__(self, meter: otel.Meter) -> None:
        self._counters = {
            name: meter.create_counter(f"token_allowance.{own}", unit, text)
            for name, (own, unit, text) in COUNTERS.items()
        }
        self._histograms = {
            metrics.CALL_TOKENS: meter.create_histogram(
                "gen_ai.client.token.usage",
                "{token}",
                "Number of input and output tokens used",
                explicit_bucket_boundaries_advisory=TOKEN_EDGES,
            ),
            metrics.CALL_SECONDS: meter.create_histogram(
                "gen_ai.client.operation.duration",
                "s",
                "GenAI operation duration",
                explicit_bucket_boundaries_advisory=SECOND_EDGES,
            ),
            metrics.RESERVE_SECONDS: meter.create_histogram(
                "token_allowance.reserve.duration",
                "s",
                "How long a call waited for its budgets",
                explicit_bucket_boundaries_advisory=RESERVE_EDGES,
            ),
        }
        meter.create_observable_gauge(
            "token_allowance.ledger.behind",
            [_behind],
            "s",
            "How long the oldest event has waited for the ledger",
        )

    def add(self, counted: Sequence[Counted]) -> None:
        for name, labels, more in counted:
            if counter := self._counters.get(name):
                counter.add(more, _attributes(labels))

    def measure(self, measured: Sequence[Measured]) -> None:
        for name, labels, figure in measured:
            if histogram := self._histograms.get(name):
                extra = () if name == metrics.RESERVE_SECONDS else (OPERATION,)
                histogram.record(figure, _attributes((*labels, *extra)))


def _attributes(labels: Labels) -> dict[str, str]:
    return {NAMES.get(name, name): value for name, value in labels}


def _behind(options: CallbackOptions) -> Iterable[Observation]:
    try:
        seconds = conf.store().behind_seconds()
    except StoreUnavailable:
        return
    if seconds is not None:
        yield Observation(seconds)


@lru_cache(maxsize=1)
def exporter() -> OpenTelemetry:
    return OpenTelemetry(otel.get_meter("token_allowance"))
