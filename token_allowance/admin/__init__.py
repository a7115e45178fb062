"""Where budgets are defined. Importing this registers every page."""

from __future__ import annotations

from token_allowance.admin.adjustments import AdjustmentAdmin
from token_allowance.admin.alert_rules import AlertRuleAdmin
from token_allowance.admin.alerts import AlertAdmin
from token_allowance.admin.channels import ChannelAdmin, DeliveryAdmin
from token_allowance.admin.degrade import DegradeRuleAdmin
from token_allowance.admin.drills import DrillAdmin
from token_allowance.admin.ledger import ReservationAdmin
from token_allowance.admin.limits import LimitAdmin
from token_allowance.admin.outbox import DeadLetterAdmin, OutboxAdmin, PendingSettlementAdmin
from token_allowance.admin.prices import ModelAliasAdmin, PriceAdmin
from token_allowance.admin.refusals import RefusalAdmin
from token_allowance.admin.spend import HourlySpendAdmin
from token_allowance.admin.switches import SwitchAdmin
from token_allowance.admin.tenants import TenantAdmin

__all__ = [
    "AdjustmentAdmin",
    "AlertAdmin",
    "AlertRuleAdmin",
    "ChannelAdmin",
    "DeadLetterAdmin",
    "DegradeRuleAdmin",
    "DeliveryAdmin",
    "DrillAdmin",
    "HourlySpendAdmin",
    "LimitAdmin",
    "ModelAliasAdmin",
    "OutboxAdmin",
    "PendingSettlementAdmin",
    "PriceAdmin",
    "RefusalAdmin",
    "ReservationAdmin",
    "SwitchAdmin",
    "TenantAdmin",
]
