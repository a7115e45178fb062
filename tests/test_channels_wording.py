"""What a message says, and what hostile names cannot make of it."""

from __future__ import annotations

import datetime as dt
import json
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.urls import include, path

from tests.tellings import NOW, alert, channel, rule
from token_allowance.channels import figures, wording
from token_allowance.channels.payload import payload, percent, trial_payload

pytestmark = pytest.mark.django_db
BLOCKED = """\
[BLOCKED] acme-corp reached its monthly limit: $250.00 of $250.00
acme-corp is now refused for all features until 1 Dec 00:00 UTC (in 1 d 9 h).
Used: $250.00 of $250.00 (100 % used). Overshoot $0.00. Refused so far: 3 calls, 2 users.
What changed: $ per hour 14x the usual for a Saturday, since 13:40 UTC.
Top spenders, last 15 minutes
  1   agent / claude-sonnet   user u_8812      $31.84   63 %   412 calls (usual 29)
  2   summarise / gpt-mini    (7 users)         $5.02   10 %   88 calls
  3   label / gpt-mini        user u_1      $0.000719    0 %   1 call
What you can do
  Stop calls: {stop}   (asks you to confirm)
  Look: {look}
  This alert: {alert}
This rung is reported once until 1 Dec 00:00 UTC. Next: none. Rule "tenant ladder", change: {rule}
Snapshot 2026-11-29 14:02:11 UTC · environment production · event {id}
"""
HOSTILE = (
    "x\r\nBcc: all@example.com",
    "<!channel> <!here> <https://evil.example|look>",
    "@here @channel @all @everyone @ana",
    "```\n*bold*",
    "[click](https://evil.example)",
    "a\u202eb\u200b\x01c\x85d\u2028e",
    "&lt;!here&gt;",
)


def said(event: str = "fired", seen: dict[str, Any] | None = None, **given: Any) -> str:
    return wording.text(payload(alert(seen=seen, **given), event, NOW))


def test_a_message_is_worded_in_one_order(settings: Any) -> None:
    settings.TOKEN_ALLOWANCE = {"LINK_BASE": "https://shop.example/", "ENVIRONMENT": "production"}
    message = payload(alert(), "fired", NOW)
    assert wording.text(message) == BLOCKED.format(id=message["id"], **message["links"])
    assert list(message["links"]) == ["stop", "look", "alert", "rule"]
    assert {url.partition("/a")[0] for url in message["links"].values()} == {"https://shop.example"}


ADMIN = path("admin/", admin.site.urls)
BOARD = path("board/", include("token_allowance_dashboard.urls"))


@pytest.mark.parametrize(
    ("pages", "stop", "alert_page"),
    [
        ([ADMIN], "/admin/token_allowance/switch/", "/admin/token_allowance/alert/{}/change/"),
        ([ADMIN, BOARD], "/board/switches/stop/?tenant=acme%26co", "/board/alerts/{}/"),
        ([BOARD], "/board/switches/stop/?tenant=acme%26co", "/board/alerts/{}/"),
        ([], None, None),
    ],
)
def test_links_lead_to_the_dashboard_or_else_to_the_admin(
    settings: Any, pages: list[Any], stop: str | None, alert_page: str | None
) -> None:
    urls = ModuleType("urls")
    urls.__dict__["urlpatterns"] = pages
    settings.ROOT_URLCONF = urls
    settings.TOKEN_ALLOWANCE = {"LINK_BASE": "https://shop.example"}
    fired = alert(tenant="acme&co")
    found = payload(fired, "fired", NOW)["links"]
    assert found.get("stop") == (stop and f"https://shop.example{stop}")
    assert found.get("alert") == (
        alert_page and f"https://shop.example{alert_page.format(fired.pk)}"
    )
    assert ("rule" in found) == bool(pages)


def test_the_payload_has_every_field_and_nothing_that_was_not_named() -> None:
    message = payload(alert(), "fired", NOW)
    assert {name: message[name] for name in ("rule", "severity", "unit", "used", "amount")} == {
        "rule": "tenant ladder", "severity": "critical", "unit": "cost", "used": 250_000_000,
        "amount": 250_000_000,
    }  # fmt: skip
    assert (message["state_before"], message["state_after"]) == ("degraded", "blocked")
    assert message["percent_used"] == "100"
    assert message["target"] == {"tenant": "acme-corp"}
    assert message["snapshot_at"] == message["fired_at"] == message["at"] == NOW.isoformat()
    assert message["links"] == {}
    assert [one["cost_micros"] for one in message["top_spenders"]] == [31_843_217, 5_020_000, 719]
    assert "secret prompt" not in json.dumps(message)


def test_the_same_alert_and_event_always_have_the_same_id() -> None:
    fired = alert()
    ids = [payload(fired, event, NOW + dt.timedelta(hours=n))["id"]
           for n, event in enumerate(("fired", "fired", "resolved"))]  # fmt: skip
    assert ids[0] == ids[1] != ids[2]
    assert payload(alert(rung=90), "fired", NOW)["id"] not in ids


@pytest.mark.parametrize(
    ("given", "seen", "subject", "first"),
    [
        ({"rung": 70, "title": "acme: $175.00 of $250.00"},
         {"state_after": "warning", "used": 175_000_000,
          "forecast_at": "2026-11-30T18:40:00+00:00"},
         "[70 %] acme: $175.00 of $250.00",
         "acme-corp is not refused yet; at this pace the limit is reached 30 Nov 18:40 UTC."),
        ({"rung": 90, "user": "u_1"}, {"state_after": "degraded"}, "[90 %] ",
         "User u_1 of acme-corp may now get answers of a cheaper model, or shorter ones, until "
         "1 Dec 00:00 UTC (in 1 d 9 h)."),
        ({"feature": "agent", "tenant": ""}, {"resets_at": None}, "[BLOCKED] ",
         "Feature agent is now refused until the limit is raised."),
        ({"tenant": ""}, {"state_after": "observing"}, "[OBSERVED] ",
         "Everybody would be refused now; nothing is, because the mode is observe."),
    ],
)  # fmt: skip
def test_the_first_line_stands_alone(
    given: dict[str, Any], seen: dict[str, Any], subject: str, first: str
) -> None:
    lines = said(seen=seen, **given).splitlines()
    assert lines[0].startswith(subject)
    assert lines[1] == first


@pytest.mark.parametrize(
    ("kind", "tag"), [("spend_rate", "[SPIKE] "), ("unpriced", "[NO PRICE] "), ("silent", "[SIL")]
)
def test_other_rules_say_what_they_mean_themselves(kind: str, tag: str) -> None:
    other = rule(kind=kind, name=kind)
    text = said(rule=other, rung=0, seen={"sentence": "It spends $2.12 a minute."})
    assert text.startswith(tag)
    assert "\nIt spends $2.12 a minute.\n" in text
    assert "This is reported once until it is over." in text
    title = "agent is spending a lot"
    assert f"\n{title}\n" in said(
        rule=other, rung=0, title=title, target="b", seen={"taken_at": None}
    )


def test_a_forecast_is_no_rung_of_a_ladder() -> None:
    text = said(rule=rule(kind="forecast", name="forecast"), rung=1, seen={"sentence": "Soon."})
    assert "rung" not in text
    assert "This is reported once" in text


@pytest.mark.parametrize(("state", "word"), [("stopped", "Stopped"), ("ok", "Resumed")])
def test_a_switch_says_what_was_done_with_it(state: str, word: str) -> None:
    switch = rule(kind="switch", name="switch")
    title = "agent / acme-corp by ana: runaway loop."
    lines = said(rule=switch, rung=0, title=title, seen={"state_after": state}).splitlines()
    assert lines[:2] == [f"[{word.upper()}] {title}", f"{word}: {title}"]
    assert 'This is reported once. Rule "switch".' in lines


def test_what_is_over_says_so() -> None:
    fired = alert(seen={"forecast_at": NOW.isoformat()})
    message = payload(fired, "resolved", NOW)
    assert (message["state_before"], message["state_after"]) == ("blocked", "ok")
    text = wording.text(message)
    assert text.startswith("[RESOLVED] ")
    assert "\nacme-corp is admitted as usual.\n" in text
    assert "reported once" not in text
    other = alert(rule=rule(kind="spend_rate", name="r"), title="[SPIKE] agent spends $2 a minute.")
    assert wording.text(payload(other, "resolved", NOW)).startswith(
        "[RESOLVED] agent spends $2 a minute.\nIt is over: agent spends $2 a minute.\n"
    )
    assert wording.subject(payload(other, "fired", NOW)) == "[SPIKE] agent spends $2 a minute."


def test_a_test_is_marked_as_one() -> None:
    message = trial_payload(channel(), "ana", NOW)
    assert wording.text(message).startswith(
        "[TEST] a message to channel email\n"
        "Nothing has happened: ana sent this to see whether it arrives.\n"
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_break_neither_lines_nor_markup(name: str) -> None:
    fired = alert(
        tenant=name, title=f"{name} is spent", rule=rule(name=name[:100]),
        seen={"changed": name, "top_spenders": [{"feature": name, "user": name, "calls": 2}]},
    )  # fmt: skip
    harmless = alert(
        tenant="x", title="x is spent", rule=rule(name="x"), target="b",
        seen={"changed": "x", "top_spenders": [{"feature": "x", "user": "x", "calls": 2}]},
    )  # fmt: skip
    message, usual = payload(fired, "fired", NOW), payload(harmless, "fired", NOW)
    text = wording.text(message)
    assert "\n" not in wording.subject(message)
    assert len(text.splitlines()) == len(wording.text(usual).splitlines())
    assert all(line.isprintable() for line in text.splitlines())
    chat = wording.slack(message)["text"]
    assert len(chat.splitlines()) == len(wording.slack(usual)["text"].splitlines())
    assert chat.count("```") == 2
    for mark in (
        "<",
        ">",
        "](",
        "://",
        *("@" + word for word in ("here", "channel", "all", "ana")),
    ):
        assert mark not in chat, mark
    assert "&" not in chat.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")


@pytest.mark.parametrize(
    ("unit", "cost_micros", "shown"),
    [
        ("cost", 5_000_000, "$5.00"),
        ("tokens", 5_000_000, "900 tokens"),
        ("cost", 0, "900 tokens"),
        ("calls", 0, "900 tokens"),
        ("calls", 5_000_000, "$5.00"),
    ],
)
def test_a_spender_is_told_in_what_is_limited_and_never_as_spending_nothing(
    unit: str, cost_micros: int, shown: str
) -> None:
    """Case C90: of a call without a price the ledger's sum is 0, which is not what it cost."""
    spender = {"feature": "agent", "cost_micros": cost_micros, "tokens": 900, "percent": 100}
    text = said(seen={"top_spenders": [spender]}, unit=unit)
    [row] = [line for line in text.splitlines() if "agent" in line and "100 %" in line]
    assert shown in row
    assert "$0.00" not in row


def test_long_names_are_cut_and_five_spenders_are_shown() -> None:
    spenders = [{"feature": "f" * 200, "user": str(n), "calls": n} for n in range(1, 20)]
    text = said(seen={"top_spenders": spenders}, title="t" * 300)
    assert max(map(len, text.splitlines())) <= 200
    assert "user 5" in text
    assert "user 6" not in text


@pytest.mark.parametrize(
    ("used", "amount", "expected"),
    [(175, 250, "70"), (2499, 2500, "99.9"), (249_999_999, 250_000_000, "99.9"), (1, 3, "33.3"),
     (300, 250, "120"), (0, 250, "0"), (5, 0, None), (None, 5, None)],
)  # fmt: skip
def test_percent_used_is_exact_and_never_rounded_up(
    used: int | None, amount: int, expected: str | None
) -> None:
    assert percent(used, amount) == expected


@pytest.mark.parametrize(
    ("amount", "unit", "expected"),
    [(719, "cost", "$0.000719"), (1, "cost", "$0.000001"), (99_999, "cost", "$0.099999"),
     (999_999, "cost", "$0.99"), (31_849_999, "cost", "$31.84"), (0, "cost", "$0.00"),
     (1_250_000_000, "cost", "$1,250.00"), (1200, "tokens", "1,200 tokens"),
     (1, "calls", "1 call")],
)  # fmt: skip
def test_c90_small_amounts_are_never_nothing(amount: int, unit: str, expected: str) -> None:
    assert figures.amount_text(amount, unit) == expected
