"""The demo's promises: that they are kept, and that a broken one is noticed."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from project.demo import agent, clients, figures, offers, promises, report, seed, simulation
from project.demo.control import Stopped
from project.demo.offers import Offer
from project.demo.story import Figures
from project.demo.visitor import Answer
from token_allowance import allowance
from token_allowance.models import Limit, Price, Reservation
from token_allowance.testing import spend

ROOT = Path(__file__).resolve().parent.parent
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OLLAMA_HOST", "DATABASE_URL")
NOON = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
MIDNIGHT = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
TIMEOUT_SECONDS = 60


def environment():
    return {name: value for name, value in os.environ.items() if name not in KEYS} | {
        "DJANGO_SETTINGS_MODULE": "project.settings"
    }


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def without_bundle(*words, **options):
    raise CommandError("genai-prices is not installed")


@pytest.fixture
def provider(transactional_db, monkeypatch):
    # Reading all bundled prices for each test would take a second each; --check does read them.
    monkeypatch.setattr(seed, "call_command", without_bundle)
    seed.policy()
    with simulation.running() as provider:
        yield provider


def test_the_check_keeps_every_promise_and_says_nothing_else():
    made = subprocess.run(
        [sys.executable, "manage.py", "demo", "--check"],
        cwd=ROOT,
        # A zone with an odd offset, and a proxy that nothing on loopback may ask.
        env=environment() | {"TIME_ZONE": "Asia/Kathmandu", "HTTP_PROXY": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert made.stderr == ""
    assert made.returncode == 0
    ledger, *told, verdicts = made.stdout.strip().split("\n\n")
    assert ledger.startswith("time")
    assert len(ledger.splitlines()) == 1 + 34
    assert [text[:8] for text in told] == ["| [90 %]"] * 2
    assert [line[:4] for line in verdicts.splitlines()] == ["PASS"] * len(promises.CHECKS)


def test_the_served_demo_prints_where_it_is_and_a_login_and_stops_on_ctrl_c(tmp_path):
    # A copy of the start-up without touching the data of somebody's running demo.
    code = (
        "import sys; from pathlib import Path; from django.conf import settings;"
        "settings.BASE_DIR = Path(sys.argv.pop(1));"
        "from django.core.management import execute_from_command_line as run; run(sys.argv)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "demo", "--port", "0"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as started:
        try:
            said = ""
            for line in started.stdout:
                said += line
                if "Ctrl-C" in line:
                    break
            url = re.search(r"Open +(\S+)", said)[1]
            assert re.search(r"Admin +\S+/admin/ +user staff +password \S{12,}", said)
            assert urlsplit(url).hostname == "127.0.0.1"
            assert status(url, "/") == 200
            assert status(url, "/static/project/demo.css") == 200
        finally:
            started.send_signal(signal.SIGINT)
            rest = started.stdout.read()
        assert started.wait(TIMEOUT_SECONDS) == 0
    assert rest.strip() == "Stopped."
    assert (tmp_path / "demo.sqlite3").exists()


def status(url, path):
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()  # a server that is left in mid-sentence logs a broken pipe
    connection.close()
    return answer.status


def test_a_database_of_somebody_else_is_never_touched(db):
    with pytest.raises(CommandError, match="env -u DATABASE_URL"):
        call_command("demo", "--check")


# Promises


def refusal(**changed):
    headers = {
        "content-type": "application/problem+json",
        "retry-after": "43200",
        "x-should-retry": "false",
    }
    body = '{"detail": "user daily budget exceeded: $0.45 of $0.50 used"}'
    return replace(Answer(429, headers, body), **changed)


@pytest.fixture
def kept():
    exceeded = {"detail": "user daily budget exceeded: $0.40 of $0.50 used"}
    return Figures(
        page=Answer(200, {}, "Simulated provider, not real money."),
        chat=[Answer(200, {}, ""), Answer(200, {}, ""), refusal(), refusal()],
        chat_reached=2,
        refused_at=NOON,
        day_ends_at=MIDNIGHT,
        streamed=Answer(200, {}, "<html></html>\n"),
        agent={"calls": 5, "stopped": {"code": "per_request_calls_exceeded"}},
        agent_reached=5,
        climb={
            "steps": [
                {"model": simulation.FLAT_MODEL, "percent": "72 %"},
                {"model": simulation.FLAT_MODEL, "percent": "90 %"},
                {"model": simulation.FLAT_SMALL_MODEL, "percent": "99 %"},
            ],
            "stopped": {"code": "user_daily_budget_exceeded"},
        },
        climb_reached=[simulation.FLAT_MODEL] * 2 + [simulation.FLAT_SMALL_MODEL],
        told=[
            f"[90 %] user climber-1 of acme: $0.49 of $0.50 used\nTop spenders\n"
            f"  1  climb / {simulation.FLAT_SMALL_MODEL}"
        ],
        stopped=Stopped(
            answer=Answer(503, {}, '{"code": "switch_engaged"}'),
            effect_ms=9,
            reached=0,
            after_resume=Answer(200, {}, "{}"),
        ),
        race=[{"status": 429, "body": exceeded}, {"status": 200, "body": {}}],
        race_reached=6,
        user_budget=500_000,
        peaks={"one": 480_000, "other": 500_000},
        samples=9,
        reached=2,
        states=["settled", "released"],
        request_ids=["a", "b"],
        reserved_left=0,
        drifts=[],
    )


def climbed(*percents, code="user_daily_budget_exceeded"):
    """Two full calls and a cheap one, after which so much of the budget was used."""
    models = [simulation.FLAT_MODEL] * 2 + [simulation.FLAT_SMALL_MODEL]
    steps = [{"model": m, "percent": p} for m, p in zip(models, percents, strict=True)]
    return {"climb": {"steps": steps, "stopped": {"code": code}}}


def stop(**changed):
    made = {
        "answer": Answer(503, {}, '{"code": "switch_engaged"}'),
        "reached": 0,
        "after_resume": Answer(200, {}, "{}"),
    }
    return {"stopped": Stopped(**made | changed)}


def broken(figures):
    return [verdict.promise for verdict in promises.judge(figures) if not verdict.kept]


def test_good_figures_keep_every_promise(kept):
    assert broken(kept) == []


@pytest.mark.parametrize(
    ("changed", "promise"),
    [
        ({"page": Answer(200, {}, "Welcome")}, "simulated"),
        ({"page": None}, "simulated"),
        ({"chat_reached": 3}, "used-up budget"),
        ({"chat": [Answer(200, {}, "")] * 2 + [refusal()] * 3}, "used-up budget"),
        ({"chat": [refusal(), refusal()], "chat_reached": 0}, "used-up budget"),
        ({"streamed": Answer(200, {}, "<html>")}, "streamed"),
        ({"streamed": Answer(429, {}, "</html>")}, "streamed"),
        ({"agent_reached": 6}, "agent"),
        ({"agent": {"calls": 5, "stopped": None}}, "agent"),
        ({"climb": {}}, "cheaper model"),
        ({"climb_reached": [simulation.FLAT_MODEL] * 3}, "cheaper model"),
        ({"climb_reached": [simulation.FLAT_MODEL] * 2}, "cheaper model"),
        (climbed("72 %", "89 %", "99 %"), "cheaper model"),
        (climbed("90 %", "95 %", "99 %"), "cheaper model"),
        (climbed("72 %", "90 %", "98 %"), "cheaper model"),
        (climbed("72 %", "90 %", "99 %", code="held"), "cheaper model"),
        ({"told": []}, "Somebody is told"),
        ({"told": ["[90 %] user climber-1 of acme\nSnapshot"]}, "Somebody is told"),
        (stop(answer=Answer(429, {}, '{"code": "switch_engaged"}')), "command line"),
        (stop(answer=Answer(503, {}, '{"code": "store_unavailable"}')), "command line"),
        (stop(reached=1), "command line"),
        (stop(after_resume=Answer(503, {}, "{}")), "command line"),
        ({"race": [{"status": 200, "body": {}}] * 2}, "exactly one"),
        ({"race": []}, "exactly one"),
        ({"race_reached": 7}, "exactly one"),
        ({"peaks": {"one": 500_001}}, "never above $0.50"),
        ({"peaks": {}}, "never above $0.50"),
        ({"drifts": ["one"]}, "Each counter"),
        ({"reserved_left": 1}, "Each counter"),
        ({"states": ["settled", "reserved"]}, "final state"),
        ({"states": ["settled"]}, "final state"),
        ({"request_ids": ["a", "a"]}, "final state"),
        ({"reached": 3}, "final state"),
    ],
)
def test_a_wrong_figure_breaks_its_promise_and_no_other(kept, changed, promise):
    [found] = broken(replace(kept, **changed))
    assert promise in found


def test_an_answer_that_is_no_document_is_an_empty_one():
    assert Answer(500, {}, "<h1>Server Error</h1>").document == {}
    assert Answer(200, {}, "[]").document == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"headers": refusal().headers | {"retry-after": "43210"}},
        {"headers": refusal().headers | {"x-should-retry": "true"}},
        {"headers": refusal().headers | {"content-type": "application/json"}},
        {"headers": {}},
        {"text": '{"detail": "tenant daily budget exceeded"}'},
    ],
)
def test_a_refusal_that_says_something_else_breaks_its_promise(kept, changed):
    served = kept.chat[:2]
    [found] = broken(replace(kept, chat=[*served, refusal(**changed), refusal()]))
    assert "problem document" in found


def test_a_verdict_is_one_line_and_the_ledger_a_table(kept):
    verdicts = promises.judge(replace(kept, agent_reached=6))
    assert "FAIL  The agent is cut off after exactly 5 calls (6 reached" in report.verdicts(
        verdicts
    )
    table = report.table([("a", "bb"), ("ccc", "d")])
    assert table.splitlines() == ["a    bb", "ccc  d"]


# The page


@pytest.mark.parametrize("offer", ["openai", "anthropic"])
def test_a_streamed_answer_is_charged_before_its_page_ends(client, provider, offer):
    form = {"user": "ana", "offer": offer, "question": "<b>Why?</b>"}
    page = client.post(reverse("demo:chat"), form, headers={"accept": "text/html"})
    text = page.getvalue().decode()
    assert page.status_code == 200
    assert "&lt;b&gt;Why?&lt;/b&gt;" in text
    assert "<b>Why" not in text
    assert simulation.CHAT_TEXT in text
    assert "settled" in text.partition(simulation.CHAT_TEXT)[2]
    assert text.count("</html>") == 1
    assert f'<option value="{offer}" selected>' in text
    assert "script-src" not in page["Content-Security-Policy"]


def test_a_refused_question_is_a_page_with_the_way_back(client, provider):
    Limit.objects.filter(user="*").update(amount=99_999)
    form = {"user": "ben", "offer": "openai", "question": "Hello"}
    page = client.post(reverse("demo:chat"), form, headers={"accept": "text/html"})
    assert page.status_code == 422
    Limit.objects.filter(user="*").update(amount=150_000)
    client.post(reverse("demo:chat"), form).getvalue()
    page = client.post(reverse("demo:chat"), form, headers={"accept": "text/html"})
    assert page.status_code == 429
    assert "Back to the demo" in page.content.decode()
    assert f"{reverse('demo:index')}?user=ben" in page.content.decode()
    assert provider.totals().received == 1


def test_the_agent_shows_what_it_found_and_stays_a_page(client, provider):
    page = client.post(reverse("demo:agent"), {"user": "cleo", "offer": "openai"})
    text = page.content.decode()
    assert page.status_code == 200
    assert "Stopped after 5 steps to stay inside the limit." in text
    assert "What it found so far: 12 of 16 people." in text
    assert provider.totals().received == agent.MAX_CALLS


def test_the_climb_shows_each_step_and_the_refusal(client, provider):
    page = client.post(reverse("demo:climb"), {"user": "dan"})
    text = page.content.decode()
    assert page.status_code == 200
    assert text.count("demo-flat answered") == text.count("demo-flat-small answered instead") == 5
    assert "<strong>90 %</strong>: $0.45 used" in text
    assert "Refused after 10 calls." in text
    assert provider.totals().received == 10
    again = client.post(
        reverse("demo:climb"), {"user": "dan"}, headers={"accept": "application/json"}
    )
    assert again.json()["user"] == "climber-2"


@pytest.mark.parametrize("offer", ["openai", "anthropic"])
def test_a_chat_that_a_cheaper_model_answers_says_so(client, provider, offer):
    spend("0.45", tenant="acme", user="ana")
    form = {"user": "ana", "offer": offer, "question": "Hello"}
    chosen = offers.offers()[offer == "anthropic"]
    cheaper = seed.LADDER[chosen.model]
    Limit.objects.filter(user="*").update(hard_stop_percent=120)
    page = client.post(reverse("demo:chat"), form, headers={"accept": "text/html"})
    text = page.getvalue().decode()
    assert f"so {cheaper} answered instead of {chosen.model}." in text
    answer = client.post(reverse("demo:chat"), form, headers={"accept": "application/json"})
    assert answer.json()["model"] == cheaper
    assert [entry.model for entry in provider.log()] == [cheaper] * 2


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("demo:chat", {"user": "ana", "offer": "none", "question": "Hello"}),
        ("demo:chat", {"user": "eve", "offer": "openai", "question": "Hello"}),
        ("demo:chat", {"user": "ana", "offer": "openai", "question": ""}),
        ("demo:agent", {"user": "ana", "offer": "anthropic"}),
        ("demo:climb", {"user": "eve"}),
        ("demo:race", {"user": "eve"}),
        ("demo:race-call", {"racer": "ana", "question": "race"}),
    ],
)
def test_a_form_that_makes_no_sense_calls_nobody(client, provider, path, form):
    for accept in ("text/html", "application/json"):
        answer = client.post(reverse(path), form, headers={"accept": accept})
        assert answer.status_code == 400
    assert provider.totals().received == 0


@pytest.mark.django_db
def test_without_a_provider_the_page_says_how_to_start_one(client):
    assert "./run demo" in client.get(reverse("demo:index")).content.decode()
    for path in ("demo:race", "demo:climb"):
        assert client.post(reverse(path), {"user": "ana"}).status_code == 502


def test_a_provider_that_fails_is_told_without_its_words(client, provider):
    provider.script(lambda request: simulation.Reply(status=401))
    form = {"user": "ana", "offer": "openai", "question": "Hello"}
    answer = client.post(reverse("demo:chat"), form, headers={"accept": "application/json"})
    assert answer.status_code == 502
    assert answer.json() == {
        "error": "The provider could not answer: AuthenticationError (HTTP 401)."
    }
    page = client.post(reverse("demo:chat"), form, headers={"accept": "text/html"})
    assert page.status_code == 502
    assert Reservation.objects.filter(state="released").count() == 2


def test_starting_over_empties_the_ledger_and_the_budgets(client, provider):
    form = {"user": "ana", "offer": "openai", "question": "Hello"}
    client.post(reverse("demo:chat"), form).getvalue()
    assert any(budget.used for budget in allowance.remaining(tenant="acme", user="ana"))
    assert client.post(reverse("demo:start-over")).status_code == 302
    assert not Reservation.objects.exists()
    assert not any(budget.used for budget in allowance.remaining(tenant="acme", user="ana"))


def test_a_small_amount_is_never_shown_as_nothing():
    assert figures.money(1) == "$0.000001"
    assert figures.percent(1, 500_000) == "<1 %"
    assert figures.money(None) == "unknown"


# What it starts with


def test_every_model_of_the_demo_has_a_price(provider):
    offered = [*offers.offers(), offers.flat()]
    assert {offer.model for offer in offered} == set(seed.LADDER)
    for offer in offered:
        assert Price.objects.filter(provider=offer.api, model=seed.LADDER[offer.model]).exists()
        assert Price.objects.filter(provider=offer.api, model=offer.model).exists()


def test_seeding_twice_changes_nothing(provider):
    before = Price.objects.count(), Limit.objects.count()
    seed.policy()
    assert (Price.objects.count(), Limit.objects.count()) == before


def test_a_real_model_is_offered_only_with_its_key_and_says_what_it_costs():
    assert offers.offers({}) == []
    found = offers.offers({"OPENAI_API_KEY": "k1", "ANTHROPIC_API_KEY": "k2", "OLLAMA_HOST": "a"})
    assert [offer.real for offer in found] == [True] * 3
    assert [offer.label.startswith("REAL, costs money") for offer in found] == [True, True, False]
    assert "k1" not in repr(found)
    assert "k2" not in repr(found)


def test_the_simulated_provider_stays_the_default(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with simulation.running():
        assert not offers.offers()[0].real
        assert not offers.agent_offers()[0].real


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:9000", "http://127.0.0.1:9000/v1"),
        ("http://models.example:80/", "http://models.example:80/v1"),
        ("https://models.example", "https://models.example:443/v1"),
        (":8080", "http://127.0.0.1:8080/v1"),
    ],
)
def test_ollama_is_found_where_its_own_tools_would_look(host, url):
    assert offers.ollama_url(host) == url


def test_a_real_model_is_metered_like_a_simulated_one(client, provider, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", provider.anthropic_url)
    seed.prices()
    form = {"user": "dan", "offer": "real-ollama", "question": "Hello"}
    answer = client.post(reverse("demo:chat"), form, headers={"accept": "application/json"})
    assert answer.json()["model"] == offers.OLLAMA_MODEL
    row = Reservation.objects.get()
    assert (row.provider, row.model, row.user) == ("ollama", offers.OLLAMA_MODEL, "dan")
    assert row.cost_micros > 0


def test_the_tool_takes_what_a_model_makes_up():
    offer = Offer(key="x", label="x", api="openai", model="m", base_url=None)
    assert offer.max_name == "max_completion_tokens"
    for arguments in ("", "[]", "{", '{"name": 3}'):
        assert agent._name(arguments) == ""
    assert clients.told(ValueError("secret")) == "The provider could not answer: ValueError."
