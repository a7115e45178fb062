"""When a rule would have told, had it been as it is now: for whoever changes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping

from token_allowance import conf
from token_allowance.alerts import lengths, quarters, spend_rate, telling, tokens_per_request
from token_allowance.alerts.history import History
from token_allowance.alerts.series import Series
from token_allowance.alerts.sums import Sums, Target, summed
from token_allowance.alerts.surges import Detector
from token_allowance.limits import zone
from token_allowance.models import AlertRule

KINDS = AlertRule.Kinds
Moments = Iterator[tuple[dt.datetime, set[Target]]]  # and of what was to be told then


def would_have_fired(
    rule: AlertRule, now: dt.datetime, days: int = 14
) -> list[tuple[dt.datetime, str]] | None:
    """Each alert of the last days, as moment and target; None where the past does not tell.

    By whole quarters of an hour and by feature, as roll-ups have them: what a rule sees of single
    tenants, and of a quarter before it ends, is left out.
    """
    if rule.kind not in (KINDS.SPEND_RATE, KINDS.TOKENS_PER_REQUEST):
        return None
    last = quarters.number(now)
    first = last - days * quarters.DAY
    series = _series(telling.alias_of(rule), first, last)
    found, open_ = [], set[Target]()
    surging = rule.kind == KINDS.SPEND_RATE
    for moment, told in (_surges if surging else _lengths)(rule, series, range(first, last)):
        found += [(moment, str(target)) for target in sorted(told - open_)]
        open_ = told
    return found


def _series(alias: str, first: int, last: int) -> Series:
    history = History(alias)
    wanted = range(first - quarters.WEEKS * quarters.WEEK - quarters.DAY, last)
    oldest = last if history.oldest is None else quarters.number(history.oldest) + 1
    everything: dict[int, Sums] = {}
    sums: dict[Target, Mapping[int, Sums]] = {Target(): everything}
    for (feature,), by_quarter in history.quarters([wanted], ("feature",)).items():
        for quarter, one in by_quarter.items():
            everything[quarter] = everything.get(quarter, Sums()) + one
        if feature:
            sums[Target(feature=feature)] = by_quarter
    return Series(sums, max(oldest, wanted.start), zone(conf.current().zone_name))


def _surges(rule: AlertRule, series: Series, wanted: range) -> Moments:
    begun = set[Target]()
    for since, until, cells in _quarters(series, wanted):
        detector = Detector(
            spend_rate.factor(rule), spend_rate.QUARTER, series.before(since, until)
        )
        begun = {surge.target for surge in detector.find(cells, begun)}
        yield until, begun


def _lengths(rule: AlertRule, series: Series, wanted: range) -> Moments:
    begun = set[Target]()
    for since, until, cells in _quarters(series, wanted):
        past, told = series.before(since, until), set[Target]()
        for target, now in summed(cells).items():
            length = lengths.judge(target.feature, now, past.lately(target))
            least = tokens_per_request.least(rule, going_on=target in begun)
            if target.feature and length is not None and length.z >= least:
                told.add(target)
        begun = told
        yield until, begun


def _quarters(
    series: Series, wanted: range
) -> Iterator[tuple[dt.datetime, dt.datetime, dict[tuple[str, str], Sums]]]:
    """Each quarter with what every feature did in it."""
    named = [(target.feature, sums) for target, sums in series.sums.items() if target.feature]
    for quarter in wanted:
        cells = {("", name): sums[quarter] for name, sums in named if quarter in sums}
        yield quarters.start(quarter), quarters.start(quarter + 1), cells
