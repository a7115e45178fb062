"""What is drilled: a target, the callers made up for it, and what counts as passed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from token_allowance import conf
from token_allowance.limits import checked_identifier
from token_allowance.stops import ALL_PERCENT, bucket

NAME = "drill"  # of what a made-up caller has beside the target; of the provider and the model, too
EACH = 2  # callers in each process that the switch stops, and as many that it must leave alone
BY_LENGTH = 200
MOST_PROCESSES = 64
MOST_SECONDS = 3600


class CannotDrill(Exception):
    """No drill was made; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a probe's calls are charged to; ``stopped`` if the switch is to stop them."""

    tenant: str
    user: str
    feature: str
    stopped: bool

    @property
    def values(self) -> dict[str, str]:
        return {"tenant": self.tenant, "user": self.user, "session": NAME, "feature": self.feature}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    tenant: str = ""
    feature: str = ""
    percent: int = ALL_PERCENT
    processes: int = 4
    seconds: float = 10
    slo_seconds: float = 5
    by: str = ""

    def __post_init__(self) -> None:
        if not (self.tenant or self.feature):
            raise ValueError(
                "name what to drill, a tenant or a feature that may be stopped for a moment; "
                "everything is never drilled"
            )
        for name, value, least, most in (
            ("percent", self.percent, 1, ALL_PERCENT),
            ("processes", self.processes, 1, MOST_PROCESSES),
            ("seconds", self.seconds, 0.1, MOST_SECONDS),
            ("SLO", self.slo_seconds, 0.001, MOST_SECONDS),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name}: {value:g} is not from {least:g} to {most:g}")

    @property
    def target(self) -> dict[str, Any]:
        """The values of the switch."""
        both = {"tenant": self.tenant, "feature": self.feature}
        return {name: value for name, value in both.items() if value}

    @property
    def words(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in self.target.items())
        return said if self.percent == ALL_PERCENT else f"{self.percent} % of the callers of {said}"

    @property
    def slo_ms(self) -> int:
        return round(1000 * self.slo_seconds)

    def callers(self) -> list[list[Caller]]:
        """For each process its own: some that the switch stops and, of a part, some others."""
        found: dict[bool, list[Caller]] = {True: [], False: []}
        wanted = (True,) if self.percent == ALL_PERCENT else (True, False)
        number = 0
        while any(len(found[kind]) < EACH * self.processes for kind in wanted):
            number += 1
            caller = Caller(self.tenant or NAME, f"{NAME}-{number}", self.feature or NAME, True)
            stopped = bucket(caller.values) < self.percent
            found[stopped].append(replace(caller, stopped=stopped))
        starts = range(0, EACH * self.processes, EACH)
        return [[c for kind in wanted for c in found[kind][n : n + EACH]] for n in starts]


def planned(
    *,
    tenant: str | None = None,
    feature: str | None = None,
    percent: int | None = None,
    processes: int | None = None,
    seconds: float | None = None,
    slo_seconds: float | None = None,
    by: Any = NAME,
) -> Plan:
    """The plan; what is not given is what DRILL says. ValueError if it cannot be drilled.

    A target that is given replaces the whole target of DRILL. Of a feature one in a hundred callers
    is stopped if nothing else is said, of a tenant all.
    """
    given = {
        "percent": percent, "processes": processes, "seconds": seconds, "slo_seconds": slo_seconds,
    }  # fmt: skip
    chosen = dict(conf.current().drill)
    if tenant or feature:
        chosen |= {"tenant": tenant or "", "feature": feature or "", "percent": None}
    chosen |= {name: value for name, value in given.items() if value is not None}
    if chosen["percent"] is None:
        chosen["percent"] = ALL_PERCENT if chosen["tenant"] else 1
    values: dict[str, Any] = {name: chosen[name] for name in given}
    for name in ("tenant", "feature"):
        values[name] = checked_identifier(name, chosen[name]) if chosen[name] else ""
    return Plan(
        **values,
        by=str(by).replace("\x00", "")[:BY_LENGTH],
    )
