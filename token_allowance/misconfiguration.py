"""What is wrong with a TOKEN_ALLOWANCE dict, and what its own dicts hold where nothing is given."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from zoneinfo import available_timezones

from token_allowance import money
from token_allowance.pricing import ModelPrice

NAME = "TOKEN_ALLOWANCE"
PRICE_PLACES = 8  # decimals of a price, as its columns have them
ESTIMATES: dict[str, Any] = {
    "output_tokens": 1024,  # where the request names no maximum
    "safety": 1,  # factor on the input
    "media_tokens": 1600,  # a picture, sound or file at an address, or of an unknown form
    "context_floor_tokens": 8000,  # what the provider keeps and we have no record of (case C45)
    "model_max_output_tokens": {},  # {model: longest answer}; None: do not clamp this one
    "calibrate": False,  # multiply by what settled calls of the model teach
    "strict": False,  # count text by its bytes: above any known vocabulary
}
DRILLS: dict[str, Any] = {  # of the kill switch; with a target, one is run every so many days
    "tenant": "",
    "feature": "",
    "percent": None,  # of the callers; None: 100 of a tenant, 1 of a feature
    "processes": 4,
    "seconds": 10,  # that the switch stays engaged
    "slo_seconds": 5,  # by then no call may be admitted any more
    "every_days": 7,
    "overdue_days": 30,
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "MODE": ("enforce", "observe"),
    "ON_STORE_ERROR": (None, "refuse", "admit"),
    "UNKNOWN_MODEL": ("refuse", "fallback"),
    "UNATTRIBUTED": (None, "refuse", "charge"),
    "ON_EXPIRE": ("release", "charge"),
    "EXCEEDED_STATUS": (429, 402),
}
CALLABLES = ("ATTRIBUTION", "LABELS", "STAFF_TENANT_FILTER")
EXPORTERS = ("prometheus", "opentelemetry")
INNER_KEYS = {
    "STORE": ("BACKEND", "OPTIONS"),
    "REQUEST_CAPS": ("max_calls", "max_cost"),
    "ESTIMATE": tuple(ESTIMATES),
    "DRILL": tuple(DRILLS),
    "TRUSTED_HEADERS": ("tenant", "user", "session", "feature"),
}


def problems(given: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """What is wrong with a TOKEN_ALLOWANCE dict of these keys, one sentence each."""
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
    found += _estimate_problems(given.get("ESTIMATE")) + _drill_problems(given.get("DRILL"))
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


def _drill_problems(given: Any) -> list[str]:
    found = []
    for key, value in given.items() if isinstance(given, Mapping) else ():
        name = f"{NAME}['DRILL'][{key!r}]"
        if key in ("tenant", "feature"):
            if not isinstance(value, str):
                found.append(f"{name} must be text.")
        elif key in ("percent", "processes"):
            if not (value is None and key == "percent") and not (
                _whole(value) and 1 <= value <= 100
            ):
                found.append(f"{name} must be a whole number from 1 to 100.")
        elif key in DRILLS and not _positive(value):
            found.append(f"{name} must be a number above 0.")
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
