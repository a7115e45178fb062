"""``allowance stop | resume | status``: what an operator types at three in the morning."""

from __future__ import annotations

import datetime as dt
import io
import re
import shlex
import sys
from collections.abc import Iterator
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from tests import redis_stores
from token_allowance import allowance
from token_allowance.exceptions import StoreUnavailable
from token_allowance.management.durations import duration, spoken
from token_allowance.models import Limit, Price, Refusal, Switch, SwitchEvent, Tenant

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = ("--feature", "agent", "--reason", "runaway loop")


@pytest.fixture(autouse=True)
def price() -> None:
    Price.objects.create(
        provider="openai", model="gpt-5-mini", input_mtok=Decimal(1), output_mtok=Decimal(1)
    )


def run(*words: str) -> str:
    out = StringIO()
    call_command("allowance", *words, stdout=out)
    return out.getvalue()


def call(feature: str = "agent", **attribution: Any) -> allowance.call:
    return allowance.call(
        provider="openai",
        model="gpt-5-mini",
        input_tokens=250_000,
        max_output_tokens=0,
        feature=feature,
        **attribution,
    )


def stopped(**attribution: Any) -> bool:
    try:
        with call(**attribution) as one:
            one.release()
    except allowance.SwitchEngaged:
        return True
    return False


def test_stop_says_what_happened_what_is_in_flight_and_how_to_undo_it() -> None:
    with call(tenant="7"), call(tenant="7"), call("chat", tenant="7"), call(tenant="8"):
        text = run("stop", *AGENT, "--tenant", "7", "--for", "30m", "--by", "ana")
    assert re.match(
        r"Stopped tenant 7, feature agent at \d\d:\d\d:\d\d UTC, for 30m, to [\d :-]{19} UTC\.\n"
        r"New calls are refused in every process: 503, switch_engaged, not retried by SDKs\.\n"
        r"In flight: 2 calls, about \$0\.50 reserved; they finish and are charged\.\n"
        r"To undo it: python manage\.py allowance resume --tenant 7 --feature agent\n$",
        text,
    ), text
    switch = Switch.objects.get()
    assert (switch.reason, switch.by, switch.percent) == ("runaway loop", "ana", 100)
    assert switch.ends_at is not None
    assert switch.ends_at - switch.engaged_at == pytest.approx(
        dt.timedelta(minutes=30), abs=dt.timedelta(seconds=5)
    )
    assert stopped(tenant="7")
    assert not stopped(tenant="8")


def undone(text: str) -> str:
    """Run the command that the text names."""
    (command,) = re.findall(r"python manage\.py allowance (.*)", text)
    return run(*shlex.split(command))


def test_the_command_that_stop_prints_undoes_it() -> None:
    text = run("stop", "--user", "o'brien; rm -rf", *AGENT)
    assert stopped(user="o'brien; rm -rf")
    done = undone(text)
    assert done.startswith("Resumed user o'brien; rm -rf, feature agent: it was stopped for ")
    assert "It had been stopped by " in done
    assert not stopped(user="o'brien; rm -rf")


def test_all_that_a_switch_can_be_told() -> None:
    text = run("stop", *AGENT, "--cut-streams", "--percent", "1%", "--by", "ana")
    assert "Stopped 1 % of the callers of feature agent at" in text
    assert "In flight: no calls.\n" in text
    switch = Switch.objects.get()
    assert (switch.percent, switch.cuts_streams, switch.ends_at) == (1, True, None)


def test_who_is_not_named_is_the_user_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ops")
    run("stop", *AGENT)
    assert Switch.objects.get().by == "ops"

    def nameless() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr("getpass.getuser", nameless)
    run("stop", *AGENT)
    assert Switch.objects.get().by.startswith("user ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--reason"),
        (("--reason", "x"), "say which calls: --tenant KEY"),
        (("--reason", " ", "--feature", "agent"), "Nothing was stopped: a switch needs a reason"),
        (("--reason", "x", "--everything", "--feature", "agent"), "or --everything"),
        ((*AGENT, "--for", "30"), "'30': give minutes, hours or days, such as 30m, 2h or 1h30m"),
        ((*AGENT, "--for", "0m"), "not between a second and a year"),
        ((*AGENT, "--percent", "0"), "'0' is not a whole number from 1 to 100"),
        (("--reason", "x", "--feature", "*"), "is not a value"),
    ],
)
def test_what_is_wrong_is_said_and_stops_nothing(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError) as error:
        run("stop", *words)
    assert said in str(error.value)
    assert not Switch.objects.exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "yes", "stops"),
    [("stop everything", False, True), ("y", False, False), ("", True, True)],
)
def test_everything_is_asked_for_twice_of_a_person(
    typed: str, yes: bool, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{typed}\n"))
    words = ["stop", "--everything", "--reason", "spend", *(["--yes"] if yes else [])]
    if stops:
        assert "Stopped everything at" in run(*words)
    else:
        with pytest.raises(CommandError, match=r"^Nothing was stopped\.$"):
            run(*words)
    assert stopped(tenant="7") is stops


def test_a_script_is_not_asked() -> None:
    text = run("stop", "--everything", "--reason", "spend")
    assert stopped()
    assert "allowance resume --everything" in text
    assert undone(text).startswith("Resumed everything")
    assert not stopped()


def test_a_value_that_no_call_had_may_be_mistyped() -> None:
    with call("agent", tenant="7"), call("chat", tenant="7"):
        pass
    text = run("stop", "--feature", "agnet", "--tenant", "7", "--reason", "loop")
    assert "Note: the ledger has no call of feature agnet in 7 days. Did you mean agent?" in text
    assert "tenant 7 in" not in text
    assert "Note" not in run("stop", "--feature", "agent", "--reason", "loop")


def test_resume_lets_a_part_go_first_and_then_all() -> None:
    run("stop", *AGENT, "--for", "2h", "--by", "ana", "--cut-streams")
    users = [str(number) for number in range(200)]
    text = run("resume", "--feature", "agent", "--percent", "10", "--by", "bob")
    assert text.startswith("feature agent: 90 % of the callers stay stopped.\n")
    free = [user for user in users if not stopped(user=user)]
    assert 3 < len(free) < 50
    switch = Switch.objects.get()
    assert (switch.reason, switch.by, switch.cuts_streams) == ("runaway loop", "bob", True)
    assert switch.ends_at is not None
    assert 7000 < (switch.ends_at - timezone.now()).total_seconds() <= 7200
    assert undone(text).startswith("Resumed feature agent")
    assert not any(stopped(user=user) for user in users[:20])
    assert [*SwitchEvent.objects.values_list("action", "percent")] == [
        ("engaged", 100), ("engaged", 90), ("released", 90)
    ]  # fmt: skip


def test_resume_names_what_is_still_engaged() -> None:
    run("stop", *AGENT)
    run("stop", "--tenant", "7", "--reason", "does not pay", "--by", "eve")
    text = run("resume", "--feature", "agent")
    assert re.search(r"Still engaged: tenant 7: by eve since .*, until somebody resumes it", text)


def test_resume_of_what_is_not_stopped_names_what_is() -> None:
    with pytest.raises(CommandError, match="no switch is engaged"):
        run("resume", "--feature", "agent")
    run("stop", *AGENT, "--tenant", "7")
    with pytest.raises(CommandError) as error:
        run("resume", "--feature", "agent")
    assert "allowance resume --tenant 7 --feature agent" in str(error.value)


def test_a_database_that_is_down_is_said_to_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any) -> None:
        raise StoreUnavailable("The budget store's database failed: OperationalError.")

    monkeypatch.setattr("token_allowance.switches.run", down)
    with pytest.raises(CommandError, match=r"^Nothing was stopped, the database cannot be reached"):
        run("stop", *AGENT)


@pytest.fixture
def dead_redis(settings: Any) -> Iterator[None]:
    """Redis in front of the ledger, at an address where nobody answers."""
    with redis_stores.configured() as configuration:
        options = configuration["STORE"]["OPTIONS"] | {"URL": "redis://127.0.0.1:1/0"}
        settings.TOKEN_ALLOWANCE = {"STORE": configuration["STORE"] | {"OPTIONS": options}}
        yield


def test_stop_resume_and_status_work_while_redis_is_down(dead_redis: None) -> None:
    text = run("stop", *AGENT)
    assert "Stopped feature agent" in text
    assert "The store cannot be reached: " in text
    assert "The switch stands in the database" in text
    assert Switch.objects.get().released_at is None
    shown = run("status")
    assert "Engaged switches: 1\n  feature agent" in shown
    assert "the store cannot be asked" in shown
    assert "Resumed feature agent" in run("resume", "--feature", "agent")


def test_status_says_first_what_is_stopped_then_what_is_refused_and_nearly_spent() -> None:
    Limit.objects.create(tenant="*", window="day", unit="cost", amount=300_000)
    Limit.objects.create(window="day", unit="tokens", amount=10_000_000)
    with call(tenant="7") as one:
        one.record(allowance.Usage(input_tokens=250_000))
    now = timezone.now()
    minute = now.replace(second=0, microsecond=0)
    for code, calls, ago in (
        ("switch_engaged", 1200, 1),
        ("budget_exceeded", 4, 2),
        ("old", 9, 20),
    ):
        at = minute - dt.timedelta(minutes=ago)
        Refusal.objects.create(code=code, calls=calls, starts_at=at, first_at=at, last_at=at)
    run("stop", *AGENT, "--by", "ana", "--percent", "50", "--for", "2h")
    text = run("status")
    assert re.match(
        r"Engaged switches: 1\n  feature agent \(50 % of the callers\): by ana since .* UTC, "
        r"\ds ago, for another (2h|1h59m\d\ds): runaway loop\n"
        r"    to undo: python manage.py allowance resume --feature agent\n"
        r"Refused in 15 minutes: 1,204\n  1,200 switch_engaged\n  4 budget_exceeded\n",
        text,
    ), text
    assert (
        "Fullest budgets:\n"
        "  tenant 7, daily cost: $0.25 of $0.30 used (83 %)\n"
        "  all calls, daily tokens: 250,000 of 10,000,000 used (2 %)\n"
    ) in text


def test_status_names_tenants_that_are_not_active() -> None:
    assert "not active" not in run("status")
    for key in ("9", "7"):
        Tenant.objects.create(key=key, is_active=False)
    assert "Tenants that are not active, so stopped: 7, 9\n" in run("status")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400)],
)
def test_lengths_of_time(text: str, seconds: int) -> None:
    assert duration(text) == dt.timedelta(seconds=seconds)
    assert duration(spoken(duration(text))) == duration(text)


@pytest.mark.parametrize(
    "text", ["", "5", "m", "5 m", "-5m", "1.5h", "5m!", "9" * 30 + "d", "400d"]
)
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(Exception, match=r"such as|between"):
        duration(text)


def test_what_is_over_lasts_nothing() -> None:
    assert spoken(dt.timedelta(seconds=-5)) == "0s"
