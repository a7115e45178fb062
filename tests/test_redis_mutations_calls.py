"""The tests of counters and reservations fail when a rule of theirs is taken away.

As in test_redis_mutations.py; tests of the contract that show a number stand here too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from tests import (
    test_redis_protocol as seeds,
)
from tests import (
    test_redis_protocol_calls as calls,
)
from tests import test_store_leases, test_store_queues, test_store_rolling
from tests.redis_rules import Rule, line, part, shared, together
from token_allowance import limits
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.redis import (
    RedisStore,
    drainage,
    ends,
    seeding,
    wire,
)
from token_allowance.stores.redis.names import Names

__all__ = ["shared"]

FAILS = (AssertionError, pytest.fail.Exception, StoreUnavailable, TimeoutError, *wire.SOON)
Scenario = Callable[[RedisStore], None]
counter = Names.counter
events = drainage.events
silent = SimpleNamespace(drain=lambda of: 0)
FULL = "if redis.call('XLEN', KEYS[9 + 2 * n]) > tonumber(ARGV[13]) then return {'full'} end"
EVENT = "redis.call('XADD', KEYS[9 + 2 * n], '*', 'i', id, 's', 'r', 'd', row)\n"
COUNTED = "if got[2 + 2 * i] and got[3 + 2 * i] then\n    if slices"
STONE = "if mode == '' and released then mode = 'V' end"
LATE_EVENT = together(
    line("reserve", EVENT),
    line("reserve", FULL),
    line("reserve", "return {'admitted'}\n", EVENT + "return {'admitted'}\n"),
)
ALIVE = (
    "if score and tonumber(score) >= tonumber(now[1]) * 1000 + tonumber(now[2]) / 1000 "
    "then return {'alive'} end"
)


RULES: list[tuple[str, Scenario, Rule]] = [
    (
        "01 settle never creates",
        partial(seeds.test_protocol_01_a_settle_does_not_resurrect_a_lost_counter, lost=seeds.DAY),
        line("settle", COUNTED, "if true then\n    if slices"),
    ),
    (
        "01 opened counters are listed",
        seeds.test_protocol_01_a_lost_counter_is_not_taken_for_a_new_one,
        line("reserve", " and redis.call('HEXISTS', list, name) == 0"),
    ),
    (
        "02 seeding drains first",
        seeds.test_protocol_02_a_limit_counts_calls_that_the_ledger_has_not_seen,
        part(seeding, "drainage", silent),
    ),
    (
        "02 seeding attaches",
        seeds.test_protocol_02_a_limit_counts_calls_that_the_ledger_has_not_seen,
        part(seeding, "_attached", lambda *given: []),
    ),
    (
        "02 what R holds counts",
        seeds.test_protocol_02_a_limit_counts_calls_that_the_ledger_has_not_seen,
        line("settle", "elseif string.sub(R, 3) ~= ARGV[2] then", "elseif false then"),
    ),
    (
        "02 settle waits at the gate",
        seeds.test_protocol_02_a_settle_waits_while_its_counter_is_seeded,
        line("settle", "if got[2] then return {'wait'} end"),
    ),
    (
        "02 who writes has the gate",
        partial(
            seeds.test_protocol_02_who_lost_the_gate_while_it_read_writes_nothing, renews=False
        ),
        line("write", "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end"),
    ),
    (
        "02 a lost gate is not renewed",
        partial(seeds.test_protocol_02_who_lost_the_gate_while_it_read_writes_nothing, renews=True),
        line("gate", "if not holder and ARGV[3] ~= 'take' then return 0 end"),
    ),
    (
        "03 generations",
        seeds.test_protocol_03_a_limit_that_was_off_begins_another_generation,
        part(Names, "counter", lambda names, key, since: counter(names, key, 0)),
    ),
    (
        "03 a shadowed limit is counted since the earlier",
        seeds.test_protocol_03_a_limit_that_was_shadowed_knows_what_was_spent_meanwhile,
        part(limits, "_stricter", lambda one, other: min(one, other, key=limits._strictness)),
    ),
    (
        "09 tombstones",
        calls.test_protocol_09_a_reserve_that_its_release_overtakes_holds_nothing,
        line("settle", STONE, "if released then return {'late'} end"),
    ),
    (
        "09 reads before writes",
        partial(calls.test_protocol_09_a_key_of_a_wrong_type_moves_no_counter, wrong="events"),
        LATE_EVENT,
    ),
    (
        "10 what expired is listed",
        test_store_leases.test_a_lease_that_ran_out_gives_its_hold_back_and_is_listed,
        line("expire", "redis.call('XADD', KEYS[5 + 2 * n], '*', 'i', id, 's', 'e', 'd', ARGV[4])"),
    ),
    (
        "11 the ledger is asked",
        partial(
            calls.test_protocol_11_a_settlement_told_again_when_redis_has_forgotten_it, drained=True
        ),
        part(ends, "_of_ledger", lambda of, row: None),
    ),
    (
        "11 the ledger is up to date",
        partial(
            calls.test_protocol_11_a_settlement_told_again_when_redis_has_forgotten_it,
            drained=False,
        ),
        part(ends, "drainage", silent),
    ),
    (
        "11 the first charge counts",
        calls.test_protocol_11_two_settle_what_nobody_has_seen,
        line("settle", "if not R then", "if mode == 'U' or not R then"),
    ),
    (
        "11 a hold is given back once",
        calls.test_protocol_11_what_expired_is_charged_once_when_it_ends_after_all,
        line("settle", "  mode = kind\n", "  mode = 'R'\n"),
    ),
    (
        "12 leases end by the server's clock",
        partial(calls.test_protocol_12_a_skewed_clock_expires_nobody, minutes=5),
        line("expire", ALIVE),
    ),
    (
        "12 a lease is looked at again",
        calls.test_protocol_12_a_sweeper_that_has_not_heard_of_an_extension_ends_nothing,
        line("expire", ALIVE),
    ),
    (
        "14 slices that count",
        test_store_rolling.test_no_true_window_ever_exceeds_the_amount_by_any_of_two_skewed_clocks,
        line("reserve", "number >= first - 62 and", "number >= first - 50 and"),
    ),
    (
        "15 places end",
        calls.test_protocol_15_a_killed_head_blocks_for_three_seconds,
        line("reserve", " and tonumber(all[j + 1]) > now"),
    ),
    (
        "15 nobody overtakes",
        calls.test_protocol_15_a_killed_head_blocks_for_three_seconds,
        line("reserve", "elseif over or others > 0 then", "elseif over then"),
    ),
    (
        "15 one order for all queues",
        test_store_queues.test_two_calls_before_two_full_budgets_never_wait_for_each_other,
        line("reserve", "(ticket == '' or all[j] < ticket) and "),
    ),
]


@pytest.mark.parametrize(("scenario", "rule"), [pytest.param(s, r, id=n) for n, s, r in RULES])
def test_an_interleaving_misses_its_rule(
    shared: RedisStore, scenario: Scenario, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(monkeypatch)
    with pytest.raises(FAILS):
        scenario(shared)
