"""The one door: everything a host project calls. Importable before django.setup()."""

from __future__ import annotations

from token_allowance.adjustments import Adjusted, aadjust, adjust
from token_allowance.admission import Remaining, aadmit, admit, aremaining, remaining, require
from token_allowance.attribution import charge_to
from token_allowance.calls import asettle_deferred, call, settle_deferred
from token_allowance.exceptions import (
    AllowanceError,
    AllowanceExceeded,
    CapExceeded,
    ReservationError,
    StoreUnavailable,
    SwitchEngaged,
    TooLarge,
    Unattributed,
    UnknownModel,
    UnmeteredEndpoint,
)
from token_allowance.executors import executor
from token_allowance.metering import meter
from token_allowance.problems import find_refusal, problem
from token_allowance.switches import adisengage, aengage, disengage, engage
from token_allowance.usage import Usage

__all__ = [
    "Adjusted",
    "AllowanceError",
    "AllowanceExceeded",
    "CapExceeded",
    "Remaining",
    "ReservationError",
    "StoreUnavailable",
    "SwitchEngaged",
    "TooLarge",
    "Unattributed",
    "UnknownModel",
    "UnmeteredEndpoint",
    "Usage",
    "aadjust",
    "aadmit",
    "adisengage",
    "adjust",
    "admit",
    "aengage",
    "aremaining",
    "asettle_deferred",
    "call",
    "charge_to",
    "disengage",
    "engage",
    "executor",
    "find_refusal",
    "meter",
    "problem",
    "remaining",
    "require",
    "settle_deferred",
]
