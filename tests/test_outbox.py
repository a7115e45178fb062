"""A store's events in the ledger: every kind, in any order and in any pieces, exactly once."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stores import ALIASES, empty, own_pool
from token_allowance import entries
from token_allowance.models import DeadLetter, HourlySpend, Outbox, PendingSettlement, Reservation
from token_allowance.stores import events as log
from token_allowance.stores import outbox, outbox_postgresql, outbox_sqlite, rollups
from token_allowance.stores.outbox import Event, Taken

PREFIX = "token_allowance"
VENDORS = ["postgresql", "sqlite"]
BEGAN = dt.datetime(2026, 3, 4, 12, 37, 30, tzinfo=dt.UTC)
ENDED = BEGAN + dt.timedelta(seconds=9)
CLOCK = 1_772_627_850_000  # the store's clock, milliseconds, when the first event is written
HOLDS = [["8|tenant=acme|cost|day/1/UTC|20260304T000000Z", "cost", 100]]
ROW = {
    "tenant": "acme", "user": "ada", "feature": "chat", "provider": "openai", "model": "m",
    "requested_model": "m", "reserved_micros": 100, "reserved_tokens": 40, "holds": HOLDS,
    "created_at": BEGAN.isoformat(),
}  # fmt: skip


@pytest.fixture(params=VENDORS)
def database(
    request: pytest.FixtureRequest, databases: None, django_db_blocker: Any
) -> Iterator[str]:
    """Each database in turn, by alias; empty."""
    alias = ALIASES[request.param]
    with django_db_blocker.unblock(), own_pool(alias):
        yield alias


def new_id() -> str:
    return str(entries.new_id())


def begun(**columns: Any) -> dict[str, Any]:
    return ROW | {"state": "reserved", "lease_ms": 600_000} | columns


def more(micros: int, deferred_id: str = "") -> dict[str, Any]:
    """An extension says only what it changes."""
    holds = [[key, unit, micros] for key, unit, _ in HOLDS]
    amounts = {"reserved_micros": micros, "reserved_tokens": 60, "holds": holds}
    return amounts | {"deferred_id": deferred_id, "lease_ms": 600_000}


def settled(cost: int | None = 61, **columns: Any) -> dict[str, Any]:
    used = {"cost_micros": cost, "cost_exact": f"{cost}.0000000000", "input_tokens": 20}
    if cost is None:
        used = {"input_tokens": 20}
    ended = {"state": "settled", "output_tokens": 7, "settled_at": ENDED.isoformat()}
    return ROW | ended | {"usage": {"input_tokens": 20}, "price": {"id": 3}} | used | columns


def released(**columns: Any) -> dict[str, Any]:
    return ROW | {"state": "released", "settled_at": ENDED.isoformat()} | columns


def expired(charge: bool) -> dict[str, Any]:
    return {"charge": charge, "at": ENDED.isoformat()}


DOCUMENTS: dict[str, Any] = {
    "r": begun(), "x": more(150, "batch_1"),
    "s": settled(), "v": released(), "e": expired(False), "c": {}, "m": {},
}  # fmt: skip


class Stream:
    """Events in the order they were written, one each millisecond."""

    def __init__(self, *said: tuple[str, str] | tuple[str, str, Any]) -> None:
        self.events: list[Event] = []
        for kind, id, *document in said:
            self.add(kind, id, *document)

    def add(self, kind: str, id: str, document: Any = None) -> Event:
        if document is None:
            document = DOCUMENTS[kind]
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        event = Event(f"{CLOCK + len(self.events)}-0", kind, id, raw)
        self.events.append(event)
        return event

    def read(self, after: str, most: int) -> list[Event]:
        return [e for e in self.events if log.place(e.id) > log.place(after)][:most]

    def drain(self, alias: str, most: int = 1000, *, after: str | None = None) -> list[Taken]:
        """Take over all there is, at most so many events at a time."""
        found: list[Taken] = []
        while True:
            taken = outbox.take_over(alias, PREFIX, self.read, most=most, after=after)
            if not taken.events:
                return found
            found.append(taken)
            after = None if after is None else taken.last


def row(alias: str, id: str) -> Reservation:
    return Reservation.objects.using(alias).get(id=UUID(id))


def everything(alias: str) -> tuple[Any, ...]:
    """The ledger, its roll-ups and the letters, as values that compare."""
    spends = (
        HourlySpend.objects.using(alias).order_by(*rollups.KEY).values(*rollups.KEY, *rollups.SUMS)
    )
    return (
        list(Reservation.objects.using(alias).order_by("id").values()),
        [spend for spend in spends if spend["calls"]],
        list(DeadLetter.objects.using(alias).order_by("event_id").values("event_id", "error")),
    )  # fmt: skip


def summed(alias: str) -> list[dict[str, Any]]:
    """The roll-ups as they must be: sums over the ledger."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in Reservation.objects.using(alias).filter(state__in=["settled", "expired"]):
        if one.settled_at is None:
            continue
        began = one.created_at.replace(
            minute=one.created_at.minute // 15 * 15, second=0, microsecond=0
        )
        key = (began, one.tenant, one.user, one.feature, one.provider, one.model)
        sums = found.setdefault(
            key, dict(zip(rollups.KEY, key, strict=True)) | dict.fromkeys(rollups.SUMS, 0)
        )
        guessed = bool({"estimated", "uncertain", "interrupted"} & set(one.flags))
        sums["calls"] += 1
        sums["estimated_calls"] += guessed
        sums["unpriced_calls"] += one.cost_micros is None
        sums["cost_micros"] += one.cost_micros or 0
        sums["cost_exact"] += one.cost_exact or 0
        sums["estimated_micros"] += (one.cost_micros or 0) * guessed
        for name in rollups.TOKENS:
            sums[name] += getattr(one, name)
    return [found[key] for key in sorted(found)]


# One call


def test_a_call_that_begins_and_ends_in_one_batch_is_one_row(database):
    id = new_id()
    taken = Stream(("r", id), ("s", id)).drain(database)
    assert taken == [Taken(2, 1, 0, f"{CLOCK + 1}-0", f"{CLOCK + 1}-0")]
    one = row(database, id)
    assert (one.state, one.cost_micros, one.cost_exact) == ("settled", 61, 61)
    assert (one.tenant, one.user, one.model, one.session) == ("acme", "ada", "m", "")
    assert (one.input_tokens, one.output_tokens, one.reasoning_tokens) == (20, 7, 0)
    assert (one.flags, one.usage, one.price, one.raw_usage) == (
        [], {"input_tokens": 20}, {"id": 3}, None,
    )  # fmt: skip
    assert (one.created_at, one.settled_at, one.holds) == (BEGAN, ENDED, HOLDS)


def test_a_lease_ends_by_the_clock_of_the_store(database):
    open_id, ended_id = new_id(), new_id()
    Stream(("r", open_id), ("r", ended_id), ("s", ended_id)).drain(database)
    for place, id in enumerate((open_id, ended_id)):
        moment = dt.datetime.fromtimestamp((CLOCK + place) / 1000 + 600, dt.UTC)
        assert row(database, id).expires_at == moment


@pytest.mark.parametrize("most", [1, 1000])
@pytest.mark.parametrize(
    ("kinds", "state", "flags", "cost"),
    [
        ("r", "reserved", [], None),
        ("rx", "reserved", [], None),
        ("rs", "settled", [], 61),
        ("rxs", "settled", [], 61),
        ("rv", "released", [], None),
        ("re", "expired", [], None),
        ("res", "settled", ["late"], 61),
        ("rev", "expired", [], None),
        ("rsc", "settled", ["conflict"], 61),
        ("rscc", "settled", ["conflict"], 61),
        ("rsv", "settled", [], 61),
        ("rvs", "released", [], None),
        ("rse", "settled", [], 61),
        ("s", "settled", [], 61),
        ("sr", "settled", [], 61),
        ("sx", "settled", [], 61),
        ("v", "released", [], None),
        ("vr", "released", [], None),
        ("rmsm", "settled", [], 61),
    ],
)
def test_events_in_any_order(database, kinds, state, flags, cost, most):
    id = new_id()
    Stream(*((kind, id) for kind in kinds)).drain(database, most)
    one = row(database, id)
    assert (one.state, one.flags, one.cost_micros) == (state, flags, cost)
    assert everything(database)[1:] == (summed(database), [])


@pytest.mark.parametrize("most", [1, 1000])
def test_a_charged_expiry_is_an_estimate_and_a_late_word_replaces_it(database, most):
    left, told, freed = new_id(), new_id(), new_id()
    stream = Stream(*(("r", id) for id in (left, told, freed)))
    for id in (left, told, freed):
        stream.add("e", id, expired(True))
    stream.add("s", told, settled(61, flags=["late"]))
    stream.add("v", freed, released(flags=["late"]))
    stream.drain(database, most)
    one = row(database, left)
    assert (one.state, one.flags, one.settled_at) == ("expired", ["estimated"], ENDED)
    assert (one.cost_micros, one.cost_exact, one.input_tokens) == (100, 100, 40)
    one = row(database, told)
    assert (one.state, one.flags, one.cost_micros, one.input_tokens) == (
        "settled", ["estimated", "late"], 61, 20,
    )  # fmt: skip
    one = row(database, freed)
    assert (one.state, one.flags, one.cost_micros) == ("released", ["estimated", "late"], None)
    assert everything(database)[1] == summed(database)


@pytest.mark.parametrize("most", [1, 1000])
def test_an_extension_holds_more_and_a_final_event_keeps_it(database, most):
    id, longer = new_id(), {"lease_ms": 9_000_000}
    stream = Stream(("r", id, begun(flags=["would_refuse"])), ("x", id, DOCUMENTS["x"] | longer))
    stream.drain(database, most)
    ends = dt.datetime.fromtimestamp((CLOCK + 1) / 1000 + 9000, dt.UTC)
    for flags in (["would_refuse"], ["cut", "would_refuse"]):
        one = row(database, id)
        assert (one.reserved_micros, one.reserved_tokens, one.deferred_id) == (150, 60, "batch_1")
        assert (one.expires_at, one.flags) == (ends, flags)
        stream.add("s", id, settled(flags=["cut"]))
        stream.drain(database, most)


def test_an_extension_of_a_call_without_a_price_holds_tokens(database):
    id = new_id()
    Stream(("r", id, begun(reserved_micros=None)), ("x", id, more(0))).drain(database)
    one = row(database, id)
    assert (one.reserved_micros, one.reserved_tokens) == (None, 60)


def test_a_shorter_lease_does_not_shorten_one(database):
    id = new_id()
    Stream(("r", id), ("x", id, DOCUMENTS["x"] | {"lease_ms": 1})).drain(database)
    assert row(database, id).expires_at.timestamp() == pytest.approx(CLOCK / 1000 + 600)


def test_a_call_without_a_price_is_counted_as_that(database):
    id = new_id()
    Stream(("r", id), ("s", id, settled(None, flags=["unpriced"]))).drain(database)
    assert row(database, id).cost_exact is None
    spend = HourlySpend.objects.using(database).get()
    assert (spend.calls, spend.unpriced_calls, spend.cost_micros) == (1, 1, 0)
    assert spend.starts_at == BEGAN.replace(minute=30, second=0)


def test_what_the_ledger_has_by_other_means_moves_the_sums_by_the_difference(database):
    id = new_id()
    Stream(("r", id), ("e", id, expired(True))).drain(database)
    before = HourlySpend.objects.using(database).get()
    assert (before.calls, before.estimated_calls, before.cost_micros) == (1, 1, 100)
    stream = Stream(("m", ""), ("m", ""), ("s", id))
    stream.drain(database)
    after = HourlySpend.objects.using(database).get()
    assert (after.calls, after.cost_micros, after.estimated_micros) == (1, 61, 61)
    assert everything(database)[1] == summed(database)


# Idempotency keys


@pytest.mark.parametrize("most", [1, 1000])
def test_a_key_belongs_to_the_first_call_that_has_it(database, most):
    first, second, third = new_id(), new_id(), new_id()
    keyed = begun(idempotency_key="k")
    stream = Stream(
        ("r", first, keyed), ("r", second, keyed), ("r", third, keyed | {"tenant": "b"})
    )
    stream.add("s", second, settled(idempotency_key="k"))
    stream.drain(database, most)
    assert row(database, first).idempotency_key == "k"
    assert row(database, third).idempotency_key == "k"
    one = row(database, second)
    assert (one.idempotency_key, one.flags, one.state) == ("", ["repeated_key"], "settled")


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_a_released_call_gives_its_key_to_the_next(database, most):
    first, second = new_id(), new_id()
    keyed = begun(idempotency_key="k")
    Stream(
        ("r", first, keyed), ("v", first), ("r", second, keyed),
        ("s", second, settled(idempotency_key="k")),
    ).drain(database, most)  # fmt: skip
    assert row(database, first).idempotency_key == ""
    one = row(database, second)
    assert (one.idempotency_key, one.flags, one.state) == ("k", [], "settled")


def test_a_whole_call_whose_key_the_ledger_has_is_charged_without_it(database):
    first, second = new_id(), new_id()
    stream = Stream(("s", first, settled(idempotency_key="k")))
    stream.drain(database)
    stream.add("s", second, settled(idempotency_key="k"))
    stream.drain(database)
    assert row(database, second).flags == ["repeated_key"]
    assert HourlySpend.objects.using(database).get().calls == 2


# Hostile events


HOSTILE = {
    "a NUL": ("s", settled(user="a\0b")),
    "half a pair": ("s", settled(user="\ud800")),
    "half a pair in a key": ("s", settled(usage={"\udfff": 1})),
    "a NUL in a document": ("s", settled(raw_usage={"a": ["\0"]})),
    "no JSON": ("s", b"{"),
    "no object": ("s", b"[]"),
    "no UTF-8": ("s", b'{"user": "\xff"}'),
    "too deep": ("s", b'{"usage":' + b"[" * 100_000),
    "an unknown kind": ("z", settled()),
    "a negative cost": ("s", settled(-1)),
    "beyond bigint": ("s", settled(2**63)),
    "a truth": ("s", settled(input_tokens=True)),
    "a fraction": ("s", settled(input_tokens=1.5)),
    "a long name": ("s", settled(model="m" * 201)),
    "a number for a name": ("s", settled(model=5)),
    "no moment": ("s", settled(created_at="yesterday")),
    "no end": ("s", begun()),
    "no beginning": ("s", {"settled_at": ENDED.isoformat()}),
    "an infinite cost": ("s", settled(1, cost_exact="Infinity")),
    "no number": ("s", b'{"usage": {"a": NaN}}'),
    "too large a float": (
        "s", json.dumps(settled(raw_usage={"a": 9.5})).encode().replace(b"9.5", b"1e999"),
    ),
    "a cost that is not rounded up once": ("s", settled(61, cost_exact="59.5")),
    "flags that are none": ("s", settled(flags=[1])),
    "an endless lease": ("r", begun(lease_ms=10**15)),
    "an expiry that does not say how": ("e", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_event_is_set_aside_and_the_others_go_on(database, name):
    kind, document = HOSTILE[name]
    ids = [new_id() for _ in range(7)]
    stream = Stream(*(("r", id) for id in ids))
    for id in ids[:3]:
        stream.add("s", id)
    hostile = stream.add(kind, ids[3], document)
    for id in ids[3:]:
        stream.add("s", id)
    (taken,) = stream.drain(database)
    assert (taken.events, taken.dead) == (15, 1)
    letter = DeadLetter.objects.using(database).get()
    assert (letter.prefix, letter.event_id) == (PREFIX, hostile.id)
    assert bytes(letter.payload) == hostile.document
    assert letter.error.startswith(f"{kind} {ids[3]}: ")
    states = Reservation.objects.using(database).values_list("state", "cost_micros")
    assert set(states) == {("settled", 61)}
    assert everything(database)[1] == summed(database)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_end_leaves_the_beginning(database, name):
    kind, document = HOSTILE[name]
    id = new_id()
    Stream(("r", id), (kind, id, document)).drain(database)
    assert row(database, id).state == "reserved"
    assert DeadLetter.objects.using(database).count() == 1


def test_many_hostile_events_among_good_ones(database):
    ids = [new_id() for _ in range(40)]
    stream = Stream(*(("r", id) for id in ids))
    for place, id in enumerate(ids):
        stream.add("s", id, settled(61, cost_exact="59.5") if place % 3 == 0 else settled())
    stream.drain(database)
    assert DeadLetter.objects.using(database).count() == 14
    assert Reservation.objects.using(database).filter(state="settled").count() == 26
    assert everything(database)[1] == summed(database)


@pytest.mark.parametrize("id", ["", "x" * 36, "\0", "\ud800", "8" * 4000])
def test_an_event_of_no_reservation_is_set_aside(database, id):
    for kind in "rsvxec":
        Stream((kind, id)).drain(database, after="0-0")
    assert Reservation.objects.using(database).count() == 0
    assert DeadLetter.objects.using(database).get().error.isascii()


@pytest.mark.parametrize("kind", ["x", "e", "c"])
def test_an_event_that_no_row_can_be_made_of_is_set_aside(database, kind):
    Stream((kind, new_id())).drain(database)
    assert "no row" in DeadLetter.objects.using(database).get().error


def test_a_column_that_is_not_known_is_left_out(database):
    id = new_id()
    Stream(("r", id, begun(invented=1)), ("s", id, settled(invented=[]))).drain(database)
    assert row(database, id).state == "settled"


# Reading again


def test_reading_again_changes_nothing_and_never_lowers_the_watermark(database):
    ids = [new_id() for _ in range(4)]
    kinds = ("rxs", "res", "rv", "rx")
    stream = Stream(*((kind, ids[place]) for place in range(4) for kind in kinds[place]))
    stream.add("s", ids[0], b"{")
    stream.drain(database)
    before, mark = everything(database), outbox.watermark(database, PREFIX)
    for most in (1, 3, 1000):
        (first, *_) = stream.drain(database, most, after="0-0")
        assert (first.rows, first.watermark) == (0, mark)
        assert everything(database) == before


def test_what_is_new_among_what_was_taken_is_taken(database):
    """A server that was promoted has forgotten some events, and written others in their place."""
    kept, lost, new = new_id(), new_id(), new_id()
    Stream(("r", kept), ("r", lost), ("s", lost)).drain(database)
    stream = Stream(("r", kept), ("r", new), ("s", new))
    stream.drain(database, after="0-0")
    assert {row(database, id).state for id in (lost, new)} == {"settled"}
    assert outbox.watermark(database, PREFIX) == stream.events[-1].id


def test_an_event_is_one_place_in_the_stream_not_a_text():
    assert log.place("99-0") < log.place("100-0") < log.place("100-2") < log.place("100-10")


def test_an_empty_stream_leaves_everything(database):
    assert outbox.watermark(database, PREFIX) == "0-0"
    assert outbox.take_over(database, PREFIX, lambda after, most: []) == Taken(
        0, 0, 0, "0-0", "0-0"
    )
    assert Outbox.objects.using(database).get().drained_at is None


# One drainer, dying at any moment


def test_two_drainers_at_once_double_nothing(database):
    ids = [new_id() for _ in range(60)]
    stream = Stream(*((kind, id) for id in ids for kind in "rs"))
    reading = threading.Semaphore(1)
    overlaps: list[str] = []
    failures: list[BaseException] = []

    def read(after: str, most: int) -> Any:
        if not reading.acquire(blocking=False):
            overlaps.append(after)
        found = stream.read(after, most)
        reading.release()
        return found

    def drain() -> None:
        try:
            while outbox.take_over(database, PREFIX, read, most=7).events:
                pass
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=drain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (overlaps, failures) == ([], [])
    assert HourlySpend.objects.using(database).get().calls == 60
    assert outbox.watermark(database, PREFIX) == stream.events[-1].id


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["read", "rows", "insert", "replace", "add", "mark"])
def test_a_drainer_that_dies_has_changed_nothing(database, step, monkeypatch):
    id, other = new_id(), new_id()
    stream = Stream(("r", id))
    stream.drain(database)
    for kind, one in (("s", id), ("r", other), ("s", other), ("z", id)):
        stream.add(kind, one, DOCUMENTS.get(kind, {}))
    before, mark = everything(database), outbox.watermark(database, PREFIX)
    dialect = outbox_sqlite if database == "sqlite" else outbox_postgresql

    def die(*arguments: Any) -> Any:
        if step in ("insert", "add", "replace"):
            original(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        if step == "read":
            patch.setattr(stream, "read", die)
        elif step == "mark":
            patch.setattr(outbox, "_set_aside", die)
        else:
            original = getattr(dialect, step)
            patch.setattr(dialect, step, die)
        with pytest.raises(Killed):
            stream.drain(database)
    assert everything(database) == before
    assert outbox.watermark(database, PREFIX) == mark
    stream.drain(database)
    assert everything(database)[1] == summed(database)
    assert HourlySpend.objects.using(database).get().calls == 2


# Settlements that wait


def test_a_settlement_that_no_store_could_take_is_kept_until_it_is_applied(database):
    first, second = entries.new_id(), entries.new_id()
    for id in (second, first, second):
        outbox.keep(database, id, {"row": {"id": str(id)}})
    kept = outbox.kept(database, 10)
    assert kept == [(id, {"row": {"id": str(id)}}) for id in sorted((first, second))]
    assert len(outbox.kept(database, 1)) == 1
    outbox.applied(database, first)
    assert PendingSettlement.objects.using(database).get().id == second


# Whatever comes


def test_the_columns_are_those_of_the_ledger():
    fields = {field.attname: field for field in Reservation._meta.concrete_fields}
    assert set(log.COLUMNS) == set(fields)
    for name, most in log.TEXTS.items():
        assert most == (fields[name].max_length or most)
    sums = {field.attname for field in HourlySpend._meta.concrete_fields} - {"id"}
    assert sums == {*rollups.KEY, *rollups.SUMS}


WORDS: tuple[tuple[str, Any], ...] = (
    ("r", begun()),
    ("r", begun(flags=["would_refuse"])),
    ("x", more(150, "b")),
    ("x", more(190) | {"lease_ms": 900_000}),
    ("s", settled(61)),
    ("s", settled(7, flags=["uncertain"])),
    ("s", settled(None, flags=["unpriced"])),
    ("v", released()),
    ("e", expired(True)),
    ("e", expired(False)),
    ("c", {}),
    ("s", b"no JSON"),
)
IDS = [str(UUID(int=7 << 76 | 2 << 62 | number)) for number in range(4)]
said = st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(WORDS)), max_size=14)


def expected(words: Sequence[tuple[str, Any]]) -> tuple[Any, ...] | None:
    """(state, cost, held, flags) of a call by what was said of it: the rules, plainly once more."""
    state, cost, charged, held, flags = "", None, False, 0, set[str]()
    for kind, document in words:
        if isinstance(document, bytes) or (kind in "xec" and not state):
            continue
        new = set(document.get("flags", ()))
        if kind == "c":
            flags.add("conflict")
        elif kind == "e" and state == "reserved":
            state, charged = "expired", document["charge"]
            if charged:
                cost = held
                flags.add("estimated")
        elif kind in "rx" and state in ("", "reserved"):
            state, held = "reserved", max(held, document["reserved_micros"])
            flags |= new
        elif kind in "sv" and (
            state in ("", "reserved") or (state == "expired" and (kind == "s" or charged))
        ):
            flags |= new | ({"late"} if state == "expired" else set())
            held = held or document["reserved_micros"]
            cost = document.get("cost_micros")
            state, charged = ("settled", True) if kind == "s" else ("released", False)
    return (state, cost, held, flags) if state else None


def firsts(said: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The first that was said of each call, and can be read."""
    words = [(of, word) for of, word in said if not isinstance(word[1], bytes)]
    return [(of, word) for place, (of, word) in enumerate(words) if of not in dict(words[:place])]


@pytest.mark.parametrize("vendor", VENDORS)
def test_any_events_in_any_pieces_make_the_same_rows(vendor, databases, django_db_blocker):
    alias = ALIASES[vendor]

    @settings(
        max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(said=said, cut=st.integers(1, 6), again=st.integers(0, 14))
    def check(said: list[tuple[str, tuple[str, Any]]], cut: int, again: int) -> None:
        stream = Stream(*((kind, id, document) for id, (kind, document) in said))
        made = []
        for most in (1000, 1, cut):
            empty(alias)
            stream.drain(alias, most)
            before = everything(alias)
            stream.drain(alias, cut, after=f"{CLOCK + again}-0")
            made.append(everything(alias))
            if all(word[0] in "rsv" for of, word in firsts(said)):
                assert made[-1] == before
        whole, single, pieces = made
        assert whole == single == pieces
        assert whole[1] == summed(alias)
        found = {str(one["id"]): one for one in whole[0]}
        for id in IDS:
            words = [word for of, word in (*said, *said[again + 1 :]) if of == id]
            one = found.get(id)
            figures = one and (
                one["state"], one["cost_micros"], one["reserved_micros"], set(one["flags"]),
            )  # fmt: skip
            assert figures == expected(words)

    with django_db_blocker.unblock(), own_pool(alias):
        check()
