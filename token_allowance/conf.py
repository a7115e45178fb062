"""The TOKEN_ALLOWANCE setting as one frozen value, read again whenever settings change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from token_allowance import misconfiguration, money
from token_allowance.misconfiguration import DRILLS, ESTIMATES

NAME = misconfiguration.NAME
CALLABLES = misconfiguration.CALLABLES
EXPORTERS = misconfiguration.EXPORTERS
fallback_rates = misconfiguration.fallback_rates
DATABASE_STORE = "token_allowance.stores.database.DatabaseStore"


class ConfigurationError(ImproperlyConfigured):
    """TOKEN_ALLOWANCE holds a key or a value that cannot be used."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every key is optional. The comments say what a key does and in which unit."""

    MODE: str = "enforce"  # or "observe": note what would have been refused, refuse nothing
    STORE: Mapping[str, Any] = field(default_factory=lambda: {"BACKEND": DATABASE_STORE})
    ON_STORE_ERROR: str | None = None  # "refuse" | "admit"; None: refuse only when enforcing
    ATTRIBUTION: str | Callable[..., Any] | None = None  # callable(request) -> dict
    TRUSTED_HEADERS: Mapping[str, str] = field(default_factory=dict)  # {"tenant": "X-Tenant"}
    TRUSTED_PROXIES: tuple[str, ...] = ()  # peer addresses or networks whose headers count
    REQUEST_CAPS: Mapping[str, Any] = field(default_factory=dict)  # max_calls, max_cost (dollars)
    ESTIMATE: Mapping[str, Any] = field(default_factory=dict)  # the keys of ESTIMATES
    UNKNOWN_MODEL: str = "refuse"  # or "fallback": price it by FALLBACK_PRICE
    FALLBACK_PRICE: Mapping[str, Any] | None = None  # {"input_mtok": "5", "output_mtok": "25"}
    UNATTRIBUTED: str | None = None  # "refuse" | "charge"; None: refuse if a limit looks at it
    RESERVATION_SECONDS: int = 600  # how long a hold lasts when nothing is heard of the call
    ON_EXPIRE: str = "release"  # or "charge"
    WAIT_SECONDS: float = 0  # how long a call waits for room that only calls in flight hold
    TIME_ZONE: str | None = None  # of windows; default: settings.TIME_ZONE
    EXCEEDED_STATUS: int = 429  # or 402
    # callable(dimension, value) -> name, (name, URL) or None: what staff see beside a key
    LABELS: str | Callable[..., Any] | None = None
    STAFF_TENANT_FILTER: str | Callable[..., Any] | None = None  # callable(user) -> tenants or None
    BASE_TEMPLATE: str | None = None  # what the dashboard extends; None: the admin's, or its own
    DRILL: Mapping[str, Any] = field(default_factory=dict)  # the keys of DRILLS
    METRICS: tuple[str, ...] = ()  # exporters to feed: "prometheus", "opentelemetry"
    METRICS_TOKEN: str | None = None  # what a scraper must send as its bearer token
    ENVIRONMENT: str = ""  # "production": said in every message
    LINK_BASE: str | None = None  # "https://shop.example": messages link to its pages
    # Hosts, and networks such as "10.0.0.0/8", that webhooks may reach although they are not
    # public, also by plain http
    WEBHOOK_ALLOWED: tuple[str, ...] = ()

    @property
    def zone_name(self) -> str:
        return self.TIME_ZONE or django_settings.TIME_ZONE or "UTC"

    @property
    def admits_without_store(self) -> bool:
        if self.ON_STORE_ERROR is None:
            return self.MODE == "observe"
        return self.ON_STORE_ERROR == "admit"

    @property
    def output_tokens(self) -> int:
        """Tokens assumed for an answer whose length the request does not cap."""
        return int(self._estimate("output_tokens"))

    @property
    def safety(self) -> Decimal:
        """Factor on every input estimate."""
        return Decimal(str(self._estimate("safety")))

    @property
    def media_tokens(self) -> int:
        """Tokens of a picture, sound or file whose size cannot be told."""
        return int(self._estimate("media_tokens"))

    @property
    def context_floor_tokens(self) -> int:
        """Tokens of what the provider keeps and nobody here has seen used (case C45)."""
        return int(self._estimate("context_floor_tokens"))

    @property
    def model_max_output_tokens(self) -> Mapping[str, int | None]:
        found: Mapping[str, int | None] = self._estimate("model_max_output_tokens")
        return found

    @property
    def calibrate(self) -> bool:
        return bool(self._estimate("calibrate"))

    @property
    def strict(self) -> bool:
        return bool(self._estimate("strict"))

    def _estimate(self, name: str) -> Any:
        return self.ESTIMATE.get(name, ESTIMATES[name])

    @property
    def drill(self) -> Mapping[str, Any]:
        return {**DRILLS, **self.DRILL}

    @property
    def max_calls(self) -> int | None:
        value = self.REQUEST_CAPS.get("max_calls")
        return None if value is None else int(value)

    @property
    def max_cost_micros(self) -> int | None:
        value = self.REQUEST_CAPS.get("max_cost")
        return None if value is None else money.to_micros(value)


def problems(given: Mapping[str, Any]) -> list[str]:
    """What is wrong with a TOKEN_ALLOWANCE dict, one sentence each."""
    return misconfiguration.problems(given, [f.name for f in fields(Settings)])


@lru_cache(maxsize=1)
def current() -> Settings:
    """The settings in force. Raises ConfigurationError for a key or value that cannot be used."""
    given = getattr(django_settings, NAME, {})
    if found := problems(given):
        raise ConfigurationError(" ".join(found))
    return Settings(**given)


@lru_cache(maxsize=8)
def imported(path: str | Callable[..., Any]) -> Any:
    """The object at a dotted path; a callable is returned as it is."""
    return import_string(path) if isinstance(path, str) else path


@lru_cache(maxsize=1)
def store() -> Any:
    """The store named by STORE, made once per process and settings."""
    chosen = current().STORE
    return imported(chosen.get("BACKEND", DATABASE_STORE))(**chosen.get("OPTIONS", {}))


def _forget(*, setting: str, **_: Any) -> None:
    if setting in (NAME, "TIME_ZONE", "DATABASES"):
        for cached in (current, imported, store):
            cached.cache_clear()


setting_changed.connect(_forget)
