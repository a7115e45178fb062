"""What a drill has measured, out of what its probes say of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from token_allowance.exceptions import SwitchEngaged

NS_PER_MS = 1_000_000
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a probe; moments in nanoseconds since 1970. ``code``: "" if it was served."""

    process: int
    user: str
    stopped: bool  # the switch is to stop its caller
    began: int
    ended: int
    code: str
    text: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Moments:
    """When the switch was pulled, when that had returned, and both again of its release."""

    pulled: int
    engaged: int
    let_go: int
    released: int

    @staticmethod
    def ms(since: int, until: int) -> int:
        return max(0, round((until - since) / NS_PER_MS))


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds from the pull of the switch, its commit included; None: no such call."""

    calls: int
    effect_ms: int | None
    everywhere_ms: int | None  # until every process had refused a call
    last_admission_ms: int
    admitted_after: int
    callers: int
    attempts: int
    codes: dict[str, int]
    restored_ms: int | None  # from the release until every process had served a call again
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


def measured(
    calls: Sequence[Call], moments: Moments, processes: int, slo_ms: int, reached: int
) -> Figures:
    """The figures and what is wrong with them. ``reached``: calls that came to the model."""
    stopped = [call for call in calls if call.stopped]
    refused = [c for c in stopped if c.code and c.ended >= moments.pulled]
    admitted = [c for c in stopped if not c.code and c.began >= moments.engaged]
    admitted = [c for c in admitted if c.ended <= moments.let_go]  # else it may be the release's
    again = [c for c in stopped if not c.code and c.began >= moments.released]
    first, everywhere = _first_and_all(refused, processes, moments.pulled)
    found = Figures(
        calls=len(calls),
        effect_ms=first,
        everywhere_ms=everywhere,
        last_admission_ms=max((moments.ms(moments.pulled, c.ended) for c in admitted), default=0),
        admitted_after=len(admitted),
        callers=len(refused),
        attempts=sum(call.attempts for call in refused),
        codes=dict(Counter(call.code for call in refused)),
        restored_ms=_first_and_all(again, processes, moments.let_go)[1],
        failures=(),
    )
    failures = [*_slow(found, processes, slo_ms), *_wrong(found)]
    failures += _strays(calls, moments, reached)
    return replace(found, failures=tuple(failures))


def _first_and_all(
    calls: Iterable[Call], processes: int, since: int
) -> tuple[int | None, int | None]:
    """Milliseconds until the first of these calls had ended, and until each process had one."""
    ends: dict[int, int] = {}
    for call in calls:
        ends[call.process] = min(call.ended, ends.get(call.process, call.ended))
    if not ends:
        return None, None
    last = Moments.ms(since, max(ends.values())) if len(ends) == processes else None
    return Moments.ms(since, min(ends.values())), last


def _slow(found: Figures, processes: int, slo_ms: int) -> Iterable[str]:
    if found.effect_ms is None:
        yield "no call was refused"
    elif found.everywhere_ms is None:
        yield f"not all of {processes} processes refused a call"
    elif found.everywhere_ms > slo_ms:
        yield f"a process refused its first call only after {found.everywhere_ms:,} ms"
    if found.last_admission_ms > slo_ms:
        yield f"a call was still admitted after {found.last_admission_ms:,} ms"
    if found.restored_ms is None:
        yield "not all processes served a call again after the release"
    elif found.restored_ms > slo_ms:
        yield f"a process served its first call only {found.restored_ms:,} ms after the release"


def _wrong(found: Figures) -> Iterable[str]:
    if others := {code: n for code, n in found.codes.items() if code != SwitchEngaged.code}:
        said = ", ".join(f"{code} ({n:,})" for code, n in sorted(others.items())[:SHOWN])
        yield f"callers saw another code than {SwitchEngaged.code}: {said}"
    if found.attempts > found.callers:
        yield f"{found.callers:,} refused calls were tried {found.attempts:,} times: retries"


def _strays(calls: Sequence[Call], moments: Moments, reached: int) -> Iterable[str]:
    """Callers that the switch does not name, and calls that nobody admitted."""
    spared = [c for c in calls if not c.stopped and c.code and c.began >= moments.pulled]
    if spared:
        first = spared[0]
        yield f"{len(spared):,} calls that it does not stop were not served: {first.code}"
    admitted = sum(not call.code for call in calls)
    if reached > admitted:
        yield f"{reached:,} calls came to the model, and only {admitted:,} were admitted"
