"""Where budgets are defined. Importing this registers every page."""

from __future__ import annotations

from token_allowance.admin.ledger import ReservationAdmin
from token_allowance.admin.limits import LimitAdmin
from token_allowance.admin.prices import ModelAliasAdmin, PriceAdmin
from token_allowance.admin.switches import SwitchAdmin
from token_allowance.admin.tenants import TenantAdmin

__all__ = [
    "LimitAdmin",
    "ModelAliasAdmin",
    "PriceAdmin",
    "ReservationAdmin",
    "SwitchAdmin",
    "TenantAdmin",
]
