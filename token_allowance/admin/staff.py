"""Staff who look after some tenants only: what they may touch here (case C91)."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from token_allowance import conf
from token_allowance.limits import EACH
from token_allowance.models import Limit


def tenants(request: HttpRequest) -> frozenset[str] | None:
    """Those that STAFF_TENANT_FILTER names for this person; None: all, and what has none."""
    chosen = conf.current().STAFF_TENANT_FILTER
    found: Any = conf.imported(chosen)(request.user) if chosen else None
    return None if found is None else frozenset(map(str, found))


def may_touch(request: HttpRequest, limit: Limit | None) -> bool:
    """Only what names one of their tenants; None: it is not known yet which limit is meant."""
    own = tenants(request)
    return own is None or limit is None or (limit.tenant != EACH and limit.tenant in own)
