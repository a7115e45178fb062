"""The rows: who is limited, by what, at which price, and the ledger of every call.

Nothing decides here; database constraints hold what must always be true. No foreign key leaves the
ledger: people and prices are copied into it as text and values, so a row outlives them (case C88).
"""

from __future__ import annotations

from token_allowance.models.adjustments import Adjustment
from token_allowance.models.alerts import Alert, AlertRule
from token_allowance.models.channels import Channel, Delivery
from token_allowance.models.counters import Counter, PolicyVersion
from token_allowance.models.degrade import DegradeRule
from token_allowance.models.drills import Drill
from token_allowance.models.fields import Mode, Severity, validate_time_zone
from token_allowance.models.increases import LimitIncrease
from token_allowance.models.ledger import Reservation
from token_allowance.models.limits import Limit
from token_allowance.models.marks import Mark
from token_allowance.models.outbox import DeadLetter, Outbox, PendingSettlement
from token_allowance.models.prices import ModelAlias, Price
from token_allowance.models.refusals import Refusal
from token_allowance.models.revisions import LimitRevision
from token_allowance.models.rollups import HourlySpend
from token_allowance.models.switches import Switch, SwitchEvent
from token_allowance.models.tenants import Tenant
from token_allowance.models.tickets import Ticket

__all__ = [
    "Adjustment",
    "Alert",
    "AlertRule",
    "Channel",
    "Counter",
    "DeadLetter",
    "DegradeRule",
    "Delivery",
    "Drill",
    "HourlySpend",
    "Limit",
    "LimitIncrease",
    "LimitRevision",
    "Mark",
    "Mode",
    "ModelAlias",
    "Outbox",
    "PendingSettlement",
    "PolicyVersion",
    "Price",
    "Refusal",
    "Reservation",
    "Severity",
    "Switch",
    "SwitchEvent",
    "Tenant",
    "Ticket",
    "validate_time_zone",
]
