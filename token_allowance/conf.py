"""The TOKEN_ALLOWANCE setting as one frozen value, read again whenever settings change."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import available_timezones

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from token_allowance import money
from token_allowance.pricing import ModelPrice

NAME = "TOKEN_ALLOWANCE"
PRICE_PLACES = 8  # decimals of a price, as its columns have them
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
    METRICS: tuple[str, ...] = ()  # exporters to feed: "prometheus", "opentelemetry"
    METRICS_TOKEN: str | None = None  # what a scraper must send as its bearer token
    ENVIRONMENT: str = ""  # "production": said in every message
    LINK_BASE: str | None = None  # "https://shop.example": messages link to its admin pages
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
    def max_calls(self) -> int | None:
        value = self.REQUEST_CAPS.get("max_calls")
        return None if value is None else int(value)

    @property
    def max_cost_micros(self) -> int | None:
        value = self.REQUEST_CAPS.get("max_cost")
        return None if value is None else money.to_micros(value)


ESTIMATES: dict[str, Any] = {
    "output_tokens": 1024,  # where the request names no maximum
    "safety": 1,  # factor on the input
    "media_tokens": 1600,  # a picture, sound or file at an address, or of an unknown form
    "context_floor_tokens": 8000,  # what the provider keeps and we have no record of (case C45)
    "model_max_output_tokens": {},  # {model: longest answer}; None: do not clamp this one
    "calibrate": False,  # multiply by what settled calls of the model teach
    "strict": False,  # count text by its bytes: above any known vocabulary
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "MODE": ("enforce", "observe"),
    "ON_STORE_ERROR": (None, "refuse", "admit"),
    "UNKNOWN_MODEL": ("refuse", "fallback"),
    "UNATTRIBUTED": (None, "refuse", "charge"),
    "ON_EXPIRE": ("release", "charge"),
    "EXCEEDED_STATUS": (429, 402),
}
CALLABLES = ("ATTRIBUTION", "LABELS")
EXPORTERS = ("prometheus", "opentelemetry")
INNER_KEYS = {
    "STORE": ("BACKEND", "OPTIONS"),
    "REQUEST_CAPS": ("max_calls", "max_cost"),
    "ESTIMATE": tuple(ESTIMATES),
    "TRUSTED_HEADERS": ("tenant", "user", "session", "feature"),
}


def problems(given: Mapping[str, Any]) -> list[str]:
    """What is wrong with a TOKEN_ALLOWANCE dict, one sentence each."""
    known = [f.name for f in fields(Settings)]
    found = [_unknown(key, known, f"{NAME} has no key") for key in given if key not in known]
    for key, choices in CHOICES.items():
        if key in given and given[key] not in choices:
            found.append(f"{NAME}[{key!r}] is {given[key]!r}; it may be one of {choices}.")
    for key, inner in INNER_KEYS.items():
        value = given.get(key) or {}
        if not isinstance(value, Mapping):
            found.append(f"{NAME}[{key!r}] must be a dict.")
            continue
        found += [
            _unknown(k, inner, f"{NAME}[{key!r}] has no key") for k in value if k not in inner
        ]
    if not _positive(given.get("RESERVATION_SECONDS", 600)):
        found.append(f"{NAME}['RESERVATION_SECONDS'] must be a number above 0.")
    wait = given.get("WAIT_SECONDS", 0)
    if not (wait == 0 or _positive(wait)) or isinstance(wait, bool) or wait == float("inf"):
        found.append(f"{NAME}['WAIT_SECONDS'] must be a number, 0 or more.")
    found += _estimate_problems(given.get("ESTIMATE"))
    for key in CALLABLES:
        value = given.get(key)
        if value is not None and not callable(value) and not _dotted(value):
            found.append(f"{NAME}[{key!r}] must be a callable or its dotted path.")
    metrics = given.get("METRICS", ())
    if not isinstance(metrics, list | tuple) or not set(metrics) <= set(EXPORTERS):
        found.append(f"{NAME}['METRICS'] is a list of {' and '.join(EXPORTERS)}.")
    base, open_to = given.get("LINK_BASE"), given.get("WEBHOOK_ALLOWED", ())
    if base and not str(base).startswith(("https://", "http://")):
        found.append(f"{NAME}['LINK_BASE'] must begin with https://.")
    if not isinstance(open_to, list | tuple) or not all(isinstance(one, str) for one in open_to):
        found.append(f"{NAME}['WEBHOOK_ALLOWED'] is a list of hosts and networks.")
    if given.get("TIME_ZONE") and given["TIME_ZONE"] not in available_timezones():
        found.append(f"{NAME}['TIME_ZONE'] is not a time zone such as Europe/Berlin.")
    if given.get("UNKNOWN_MODEL") == "fallback" and not given.get("FALLBACK_PRICE"):
        found.append(f"{NAME}['UNKNOWN_MODEL'] is 'fallback': set FALLBACK_PRICE too.")
    return found + _fallback_problems(given.get("FALLBACK_PRICE")) + _cap_problems(given)


def _cap_problems(given: Mapping[str, Any]) -> list[str]:
    caps = given.get("REQUEST_CAPS")
    if not isinstance(caps, Mapping):
        return []
    found = []
    if caps.get("max_calls") is not None and not _whole(caps["max_calls"]):
        found.append(f"{NAME}['REQUEST_CAPS']['max_calls'] must be a whole number, 0 or more.")
    try:
        money.to_micros(caps.get("max_cost") or 0)
    except (TypeError, ValueError) as error:
        found.append(f"{NAME}['REQUEST_CAPS']['max_cost']: {error}")
    return found


def _fallback_problems(given: Any) -> list[str]:
    if not given:
        return []
    try:
        rates = fallback_rates(given)
        ModelPrice(provider="", model="", **rates)
        if any(rate.as_tuple().exponent < -PRICE_PLACES for rate in rates.values()):
            raise ValueError(f"a rate has more than {PRICE_PLACES} decimals")
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return [f"{NAME}['FALLBACK_PRICE'] is no price: {error}"]
    return []


def fallback_rates(given: Mapping[str, Any]) -> dict[str, Any]:
    """FALLBACK_PRICE's dollars per million tokens, by the names of a price's columns."""
    return {name: Decimal(str(rate)) for name, rate in given.items()}


def _estimate_problems(given: Any) -> list[str]:
    found = []
    for key, value in given.items() if isinstance(given, Mapping) else ():
        name = f"{NAME}['ESTIMATE'][{key!r}]"
        if key == "safety" and not _positive(value):
            found.append(f"{name} must be a number above 0.")
        elif key.endswith("_floor_tokens") or key in ("output_tokens", "media_tokens"):
            if not _whole(value):
                found.append(f"{name} must be a whole number, 0 or more.")
        elif key in ("calibrate", "strict") and not isinstance(value, bool):
            found.append(f"{name} must be True or False.")
        elif key == "model_max_output_tokens" and not (
            isinstance(value, Mapping) and all(n is None or _whole(n) for n in value.values())
        ):
            found.append(f"{name} must be a dict of model names and whole numbers, or None.")
    return found


def _dotted(value: Any) -> bool:
    parts = value.split(".") if isinstance(value, str) else []
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _unknown(key: str, known: Any, text: str) -> str:
    near = difflib.get_close_matches(str(key), known, 1)
    return f"{text} {key!r}" + (f"; did you mean {near[0]!r}?" if near else ".")


def _positive(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and value > 0


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
