"""The words of a message, out of its payload alone: one order for mail and chat, plain text.

Names come from callers: in a mail they keep to their line, in a chat they mention nobody and link
nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from token_allowance.channels import figures
from token_allowance.channels.figures import amount_text, moment, until_text

Payload = Mapping[str, Any]
Clean = Callable[[str], str]

LONGEST_SUBJECT = 200
LONGEST_NAME = 40
TOP = 5
TAGS = {
    "forecast": "FORECAST",
    "spend_rate": "SPIKE",
    "tokens_per_request": "LONG CALLS",
    "requests_per_user": "MANY CALLS",
    "unpriced": "NO PRICE",
    "estimated": "ESTIMATES",
    "store_down": "STORE",
    "expired": "EXPIRED",
    "drill_overdue": "DRILL",
    "silent": "SILENT",
    "switch": "SWITCH",
    "channel": "CHANNEL",
}
STATES = {
    "blocked": "{who} is now refused{all} until {reset}.",
    "degraded": "{who} may now get answers of a cheaper model, or shorter ones, until {reset}.",
    "warning": "{who} is not refused yet{pace}.",
    "observing": "{who} would be refused now; nothing is, because the mode is observe.",
    "stopped": "{who} is stopped by a kill switch.",
    "ok": "{who} is admitted as usual.",
}
ACTIONS = {
    "stop": ("Stop calls", "   (asks you to confirm)"),
    "limit": ("Raise the limit", ""),
    "look": ("Look", ""),
    "alert": ("This alert", ""),
}
OUR_WORDS = ("session ", "user ", "feature ", "model ", "everybody")
TAGGED = re.compile(r"\A\[[A-Z0-9 %]{1,20}\] ")
# What makes chats link, mention or end a code block, with what does not.
CHAT = {
    "&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "'", "@": "@\u200b", "](": "]\u200b(",
    "://": ":\u200b//",
}  # fmt: skip


def subject(payload: Payload, clean: Clean | None = None) -> str:
    """One line: ``[BLOCKED] acme reached its monthly limit: $250.00 of $250.00``."""
    cleaned = (clean or plain)(_title(payload))
    return f"[{tag(payload)}] {cleaned}"[:LONGEST_SUBJECT]


def body(payload: Payload) -> str:
    return "\n".join(_lines(payload, plain)) + "\n"


def text(payload: Payload) -> str:
    """Subject and body."""
    return f"{subject(payload)}\n{body(payload)}"


def slack(payload: Payload) -> dict[str, Any]:
    """The message as Slack, and what takes the same, wants it."""
    lines = _lines(payload, chat, table=lambda rows: ["```", *rows, "```"])
    return {
        "text": "\n".join([f"*{subject(payload, chat)}*", *lines]),
        "unfurl_links": False,
        "unfurl_media": False,
    }


def plain(text: str) -> str:
    """Text on one line: no line ends, no control or direction characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def chat(text: str) -> str:
    cleaned = plain(text)
    for mark, harmless in CHAT.items():
        cleaned = cleaned.replace(mark, harmless)
    return cleaned


def tag(payload: Payload) -> str:
    """The word in front: what has happened, in capitals."""
    if payload["event"] == "test":
        return "TEST"
    if payload["event"] == "resolved":
        return "RESOLVED"
    state, kind = payload.get("state_after"), str(payload.get("kind"))
    if kind == "budget":
        words = {"blocked": "BLOCKED", "observing": "OBSERVED"}
        return words.get(str(state)) or f"{payload.get('rung')} %"
    if kind == "switch":
        return "STOPPED" if state == "stopped" else "RESUMED" if state else TAGS[kind]
    return TAGS.get(kind, "ALERT")


def _lines(
    payload: Payload, clean: Clean, table: Callable[[list[str]], list[str]] = list
) -> Iterator[str]:
    yield _first(payload, clean)
    if used := _used(payload):
        yield used
    if changed := payload.get("changed"):
        yield f"What changed: {clean(str(changed))}"
    if spenders := payload.get("top_spenders"):
        minutes = payload.get("top_minutes")
        yield "Top spenders" + (f", last {minutes} minutes" if minutes else "")
        unit = str(payload.get("unit"))
        yield from table(figures.table([_row(one, unit, clean) for one in spenders[:TOP]]))
    found = payload.get("links") or {}
    actions = [(*ACTIONS[name], found[name]) for name in ACTIONS if name in found]
    if actions:
        yield "What you can do"
        yield from (f"  {label}: {url}{note}" for label, note, url in actions)
    yield from _footer(payload, clean)


def _title(payload: Payload) -> str:
    """What has happened, without the word in front that a rule may have written itself."""
    return TAGGED.sub("", str(payload.get("title") or "alert"))


def _first(payload: Payload, clean: Clean) -> str:
    """The line that a lock screen shows: it must stand alone."""
    is_over = payload["event"] == "resolved"
    words = STATES.get(str(payload.get("state_after")))
    if words is None or payload.get("kind") != "budget":
        if payload.get("kind") == "switch":
            return clean(f"{tag(payload).capitalize()}: {_title(payload)}")
        if is_over:
            return clean(f"It is over: {_title(payload)}")
        return clean(str(payload.get("sentence") or _title(payload)))
    target = payload.get("target") or {}
    who = clean(_who(target))
    if who.startswith(OUR_WORDS):  # a tenant's key is left as it is
        who = who[:1].upper() + who[1:]
    forecast = payload.get("forecast_at")
    return words.format(
        who=who,
        all="" if target.get("feature") else " for all features",
        reset=until_text(payload.get("resets_at"), payload["at"]) or "the limit is raised",
        pace=f"; at this pace the limit is reached {moment(forecast)}" if forecast else "",
    )


def _who(target: Mapping[str, str]) -> str:
    """Whose budget it is: ``acme``, ``user u_1 of acme``, ``feature agent``, ``everybody``."""
    people = [f"{name} {target[name]}" for name in ("session", "user") if target.get(name)]
    people += [target["tenant"]] if target.get("tenant") else []
    things = [f"{name} {target[name]}" for name in ("feature", "model") if target.get(name)]
    whose = " of ".join(people)
    return " for ".join([*things, *([whose] if whose else [])]) or "everybody"


def _used(payload: Payload) -> str:
    used, amount, unit = payload.get("used"), payload.get("amount"), str(payload.get("unit"))
    if used is None or unit not in figures.UNITS:
        return ""
    said = f"Used: {amount_text(used, unit)}"
    if amount:
        said += f" of {amount_text(amount, unit)} ({payload.get('percent_used')} % used)."
        if used >= amount:
            said += f" Overshoot {amount_text(used - amount, unit)}."
    if calls := payload.get("refused_calls"):
        users = payload.get("refused_users")
        said += f" Refused so far: {figures.counted(calls, 'call')}"
        said += f", {figures.counted(users, 'user')}." if users else "."
    return said


def _row(spender: Mapping[str, Any], unit: str, clean: Clean) -> list[str]:
    """One spender in columns: what, who, how much, which part of all, how often.

    How much in tokens, where these are limited, or where no price is known: that is no $0.00.
    """
    named = {n: _short(str(spender[n]), clean) for n in ("feature", "model") if spender.get(n)}
    named_people = [(n, str(spender[n])) for n in ("user", "tenant") if spender.get(n)]
    people = [f"{name} {_short(value, clean)}" for name, value in named_people]
    users = spender.get("users")
    who = f"({figures.counted(users, 'user')})" if users and users > 1 else " of ".join(people)
    cost, tokens = spender.get("cost_micros"), spender.get("tokens")
    if tokens and (unit == "tokens" or not cost):
        much = amount_text(tokens, "tokens")
    else:
        much = amount_text(cost, "cost") if cost is not None else ""
    calls, usual = spender.get("calls"), spender.get("usual_calls")
    often = figures.counted(calls, "call") if calls is not None else ""
    return [
        " / ".join(named.values()) or "calls",
        who,
        much,
        f"{spender['percent']} %" if spender.get("percent") is not None else "",
        often + (f" (usual {usual:,})" if usual is not None else ""),
    ]


def _short(name: str, clean: Clean) -> str:
    kept = plain(name)
    return clean(kept if len(kept) <= LONGEST_NAME else kept[: LONGEST_NAME - 1] + "…")


def _footer(payload: Payload, clean: Clean) -> Iterator[str]:
    if payload["event"] == "fired":
        passing = payload.get("kind") == "switch"
        told = "This is reported once." if passing else "This is reported once until it is over."
        if payload.get("rung") and payload.get("kind") == "budget":
            until = moment(payload.get("resets_at"))
            told = "This rung is reported once" + (f" until {until}." if until else ".")
            told += f" Next: {payload['next']} %." if payload.get("next") else " Next: none."
        change = (payload.get("links") or {}).get("rule")
        named = f' Rule "{clean(str(payload.get("rule")))}"'
        yield told + named + (f", change: {change}" if change else ".")
    place = payload.get("environment")
    said = [f"Snapshot {figures.clock(payload['snapshot_at'])}"]
    said += [f"environment {clean(str(place))}"] if place else []
    yield " · ".join([*said, f"event {payload['id']}"])
