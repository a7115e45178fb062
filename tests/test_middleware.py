from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterator

import anthropic
import httpx2
import openai
import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends import signed_cookies
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.utils.functional import SimpleLazyObject

from tests import urls_http
from tests.urls_http import raised, spent
from token_allowance import conf
from token_allowance.attribution import NOBODY, current
from token_allowance.exceptions import CapExceeded, SwitchEngaged, TooLarge, Unattributed
from token_allowance.middleware import AllowanceMiddleware
from token_allowance.requests import RequestSource, session_name, trace_id

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
OURS = "token_allowance.middleware.AllowanceMiddleware"
LAST = list(settings.MIDDLEWARE)
FIRST = [OURS, *(name for name in LAST if name != OURS)]
REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1")


@pytest.fixture(autouse=True)
def urls() -> Iterator[None]:
    with override_settings(ROOT_URLCONF="tests.urls_http"):
        yield
    raised.clear()
    urls_http.events.clear()
    assert current() is NOBODY, "a request left its charge behind"


@pytest.fixture(params=[LAST, FIRST], ids=["last", "first"])
def order(request) -> Iterator[None]:
    with override_settings(MIDDLEWARE=request.param):
        yield


@pytest.fixture
def user(transactional_db):
    return get_user_model().objects.create_user("ann", password="x", pk=42)


def allowance(**keys: object) -> override_settings:
    return override_settings(TOKEN_ALLOWANCE=keys)


# Answers


@pytest.mark.parametrize("path", ["/refuse/", "/arefuse/"])
@pytest.mark.parametrize("accept", ["*/*", "application/json", "", "text/plain", None])
def test_a_refusal_is_a_problem_document(client, path, accept):
    raised.append(spent())
    response = client.get(path, headers={} if accept is None else {"accept": accept})
    assert response.status_code == 429
    assert response["Content-Type"] == "application/problem+json"
    assert response["Retry-After"] == "41520"
    assert response["x-should-retry"] == "false"
    assert response["Cache-Control"] == "no-store"
    assert "Accept" in response["Vary"]
    assert response.json()["detail"].startswith("user daily budget exceeded")
    assert re.fullmatch("[0-9a-f]{32}", response.json()["trace_id"])


async def answer(path: str, **headers: str):
    return await AsyncClient().get(path, headers=headers)


@pytest.mark.parametrize("path", ["/refuse/", "/arefuse/"])
def test_a_refusal_under_asgi(path):
    raised.append(spent())
    response = async_to_sync(answer)(path, accept="application/json")
    assert response.status_code == 429
    assert json.loads(response.content)["code"] == "user_daily_budget_exceeded"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (BROWSER, "text/html"),
        ("text/html", "text/html"),
        ("application/xhtml+xml", "text/html"),
        ("text/html, */*", "text/html"),
        ("text/html, application/json;q=0.9", "text/html"),
        ("text/html;q=0.9, application/json", "application/problem"),
        ("text/html, application/json", "application/problem"),
        ("text/html;q=0, */*", "application/problem"),
        ("text/html;q=0.5, */*", "application/problem"),
        ("application/problem+json, text/html;q=0.9", "application/problem"),
        ("text/*", "application/problem"),
        ("image/png", "application/problem"),
        (",;=,/;q=nan", "application/problem"),
    ],
)
def test_the_page_is_for_those_who_name_html_and_prefer_it(client, accept, kind):
    raised.append(spent())
    response = client.get("/refuse/", headers={"accept": accept})
    assert response["Content-Type"].startswith(kind)
    assert response.status_code == 429
    assert response["x-should-retry"] == "false"


def test_the_page_says_when_it_starts_again_and_what_was_not_lost(client):
    raised.append(spent(trace_id="req-7f3c"))
    text = client.get("/refuse/", headers={"accept": BROWSER}).content.decode()
    assert "<h1>You have used today’s AI allowance</h1>" in text
    assert '<time datetime="2126-11-30T00:00:00Z">30 November 2126, 00:00 UTC</time>' in text
    assert re.search(r"in \d+\sd(\s\d+\sh)?\.", text)
    assert "$0.40 of $0.50 used and $0.08 held by answers still being written." in text
    assert "Nothing you wrote was lost" in text
    assert "this request was not charged" in text
    assert "req-7f3c" in text
    for forbidden in ("<script", "<style", "style=", "onclick", "javascript:"):
        assert forbidden not in text


@pytest.mark.parametrize(
    ("error", "status", "heading"),
    [
        (spent(scope="tenant", window="month"), 429, "Your organisation has used this month’s"),
        (spent(scope="tenant user feature", window="hour"), 429, "this hour’s AI allowance for th"),
        (spent(window=""), 429, "You have used your AI allowance"),
        (spent(reason="held"), 429, "Other AI answers are still being written"),
        (spent(shared=True), 429, "AI answers are paused for now"),
        (CapExceeded(), 429, "This request took more steps than it may"),
        (TooLarge(), 422, "This request is too large for your AI allowance"),
        (SwitchEngaged(reason="a leak"), 503, "AI answers are paused for now"),
    ],
)
def test_the_page_has_plain_words_for_each_refusal(client, error, status, heading):
    raised.append(error)
    response = client.get("/refuse/", headers={"accept": BROWSER})
    assert response.status_code == status
    assert heading in response.content.decode()
    assert "a leak" not in response.content.decode()


def test_the_page_of_a_shared_budget_shows_no_amounts(client):
    raised.append(spent(shared=True))
    assert "$" not in client.get("/refuse/", headers={"accept": BROWSER}).content.decode()


def test_the_page_escapes_hostile_names(client):
    raised.append(spent(trace_id="<script>x</script>", code="<b>", scope="<i>", window="<u>"))
    text = client.get("/refuse/", headers={"accept": BROWSER}).content.decode()
    assert "&lt;script&gt;" in text
    assert not re.search("<(script|b|i|u)>", text)


@override_settings(TEMPLATES=[])
def test_a_project_without_our_templates_gets_the_document(client):
    raised.append(spent())
    response = client.get("/refuse/", headers={"accept": BROWSER})
    assert response["Content-Type"] == "application/problem+json"


@allowance(REQUEST_CAPS={"max_calls": 2})
def test_the_page_does_not_claim_that_earlier_steps_were_free(client):
    text = client.get("/capped/", headers={"accept": BROWSER}).content.decode()
    assert "the step that was stopped was not charged" in text
    assert "this request was not charged" not in text


def test_a_refusal_that_an_sdk_wrapped(client):
    outer = anthropic.APIConnectionError(request=REQUEST)
    outer.__cause__ = openai.APIConnectionError(request=REQUEST)
    outer.__cause__.__context__ = spent()
    raised.append(ExceptionGroup("tasks", [outer]))
    assert client.get("/refuse/").status_code == 429


def test_errors_beside_a_refusal_are_logged(client, caplog):
    raised.append(ExceptionGroup("tasks", [spent(), ValueError("a bug")]))
    assert client.get("/refuse/").status_code == 429
    (record,) = [r for r in caplog.records if r.name == "token_allowance"]
    assert repr(record.exc_info[1].exceptions) == "(ValueError('a bug'),)"


@pytest.mark.parametrize("error", [KeyError("answer"), openai.APIConnectionError(request=REQUEST)])
def test_other_errors_stay_errors(client, error):
    raised.append(error)
    with pytest.raises(type(error)):
        client.get("/refuse/")


def test_a_bug_in_an_except_block_stays_a_bug(client):
    bug = KeyError("answer")
    bug.__context__ = spent()
    raised.append(bug)
    with pytest.raises(KeyError):
        client.get("/refuse/")


def test_a_bug_of_the_caller_is_djangos_own_500():
    raised.append(Unattributed())
    response = Client(raise_request_exception=False).get("/refuse/")
    assert response.status_code == 500
    assert response["Content-Type"].startswith("text/html")


def test_a_switch_mails_nobody_at_each_request(client, caplog):
    raised.append(SwitchEngaged())
    assert client.get("/refuse/").status_code == 503
    assert [r.levelname for r in caplog.records if r.name == "django.request"] == ["WARNING"]


# Who is charged


@pytest.mark.parametrize("path", ["/plain/", "/admin/login/"])
def test_what_makes_no_model_call_is_not_touched(client, user, path, django_assert_num_queries):
    client.force_login(user) if path == "/plain/" else None
    with django_assert_num_queries(0):
        response = client.get(path)
    assert response.status_code == 200
    assert "x-should-retry" not in response  # case C77


def test_the_user_is_found_out_late_and_once(client, user, order, django_assert_num_queries):
    client.force_login(user)
    with django_assert_num_queries(2):  # session and user, whatever the number of model calls
        seen = client.get("/whoami/").json()
    assert seen["first"] == seen["second"]
    assert seen["first"]["user"] == "42"
    assert seen["first"]["session"] == session_name(client.session.session_key or "")
    assert seen["first"]["runs"] == []


@pytest.mark.django_db
def test_nobody_is_nobody_and_no_session_is_made(client):
    seen = client.get("/whoami/").json()["first"]
    assert (seen["user"], seen["session"]) == ("", "")
    assert not client.cookies


@pytest.mark.django_db
def test_an_invented_session_is_none(client):
    client.cookies[settings.SESSION_COOKIE_NAME] = "inventedinventedinventedinvented"
    assert client.get("/whoami/").json()["first"]["session"] == ""  # case C92


@pytest.mark.parametrize("path", ["/awhoami/", "/sync-client/"])
def test_the_user_under_asgi(user, order, path):
    client = AsyncClient()
    client.force_login(user)
    found = json.loads(async_to_sync(client.get)(path).content)
    assert (found["user"], found["session"]) == (
        "42",
        session_name(client.session.session_key or ""),
    )


@pytest.mark.django_db
def test_a_lazy_user_that_other_middleware_put_there_counts_under_asgi(rf, user):
    async def nobody() -> AnonymousUser:
        return AnonymousUser()

    request = rf.get("/")
    request.user = SimpleLazyObject(lambda: get_user_model().objects.get(pk=42))
    request.auser = nobody
    assert async_to_sync(RequestSource(request).aresolve)().user == "42"


def test_another_user_put_on_the_request_is_seen(rf, user):
    request = rf.get("/")
    request.user = AnonymousUser()
    source = RequestSource(request)
    assert source.resolve().user == ""
    request.user = user
    assert source.resolve().user == "42"
    assert source.resolve() is source.resolve()


def test_signed_cookies_are_no_session_identity(rf):
    request = rf.get("/")
    request.session = signed_cookies.SessionStore("a" * 40)
    assert RequestSource(request).resolve().session == ""


def explicit(request):
    return {"tenant": request.GET.get("t"), "feature": "chat"}


async def aexplicit(request):
    await asyncio.sleep(0)
    return explicit(request)


def querying(request):
    return {"tenant": get_user_model().objects.get(pk=42).username}


@pytest.mark.parametrize("how", [explicit, aexplicit, "tests.test_middleware.aexplicit"])
@pytest.mark.parametrize("path", ["/whoami/?t=acme", "/awhoami/?t=acme", "/sync-client/?t=acme"])
def test_an_explicit_attribution_comes_first(user, how, path):
    with allowance(ATTRIBUTION=how):
        if path.startswith("/whoami/"):
            client = Client()
            client.force_login(user)
            found = client.get(path).json()["first"]
        else:
            aclient = AsyncClient()
            aclient.force_login(user)
            found = json.loads(async_to_sync(aclient.get)(path).content)
    assert (found["tenant"], found["user"], found["feature"]) == ("acme", "42", "chat")


@pytest.mark.parametrize("path", ["/awhoami/", "/sync-client/"])
def test_an_explicit_attribution_may_query_under_asgi(user, path):
    with allowance(ATTRIBUTION=querying):
        found = json.loads(async_to_sync(AsyncClient().get)(path).content)
    assert found["tenant"] == "ann"


@pytest.mark.parametrize(
    ("found", "said"), [({"tennant": "acme"}, r"\['tennant'\]"), (["acme"], "list, not a dict")]
)
def test_a_wrong_explicit_attribution_is_named(rf, found, said):
    with (
        allowance(ATTRIBUTION=lambda request: found),
        pytest.raises(conf.ConfigurationError, match=said),
    ):
        RequestSource(rf.get("/")).resolve()


SPOOFED = {"x-tenant": "9", "x-user-id": "1", "x-session-id": "s1"}
NAMED = {"tenant": "X-Tenant", "user": "X-User-Id", "session": "X-Session-Id"}


def test_headers_of_an_untrusted_peer_are_ignored(client, user):
    client.force_login(user)
    with allowance(TRUSTED_HEADERS=NAMED, TRUSTED_PROXIES=["10.0.0.0/8", "::1"]):
        seen = client.get("/whoami/", headers=SPOOFED).json()["first"]
    assert (seen["tenant"], seen["user"]) == ("", "42")  # case C92
    assert seen["session"] == session_name(client.session.session_key or "")


def test_headers_count_for_nothing_unless_named(rf):
    with allowance(TRUSTED_PROXIES=["0.0.0.0/0"]):
        assert RequestSource(rf.get("/", headers=SPOOFED)).resolve().tenant == ""


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::7"])
def test_a_trusted_proxy_names_tenant_user_and_session(rf, peer):
    request = rf.get("/", headers=SPOOFED, REMOTE_ADDR=peer)
    with allowance(TRUSTED_HEADERS=NAMED, TRUSTED_PROXIES=("10.1.2.3/8", "fd00::/8")):
        found = RequestSource(request).resolve()
    assert (found.tenant, found.user, found.session) == ("9", "1", "s1")


def test_an_authenticated_user_comes_before_a_header(client, user):
    client.force_login(user)
    with allowance(TRUSTED_HEADERS=NAMED, TRUSTED_PROXIES=["127.0.0.1"]):
        seen = client.get("/whoami/", headers=SPOOFED).json()["first"]
    assert (seen["tenant"], seen["user"]) == ("9", "42")


@pytest.mark.parametrize("value", ["*", "", " ", "a\x00b", "a" * 201, "9,acme", "a\x1bb"])
def test_a_header_that_is_no_identifier_is_ignored(rf, value):
    with allowance(TRUSTED_HEADERS=NAMED, TRUSTED_PROXIES=["127.0.0.1"]):
        request = rf.get("/", headers={"x-tenant": value})
        assert RequestSource(request).resolve().tenant == ""


@pytest.mark.parametrize("peer", ["", "unix:", "10.0.0.1, 1.1.1.1"])
def test_a_peer_without_an_address_is_not_trusted(rf, peer):
    with allowance(TRUSTED_HEADERS=NAMED, TRUSTED_PROXIES=["0.0.0.0/0"]):
        request = rf.get("/", headers=SPOOFED, REMOTE_ADDR=peer)
        assert RequestSource(request).resolve().tenant == ""


@pytest.mark.parametrize("proxies", [["10.0.0.0/99"], ["proxy.internal"], "10.0.0.1"])
def test_a_wrong_proxy_is_named_when_the_server_starts(proxies):
    with (
        allowance(TRUSTED_PROXIES=proxies),
        pytest.raises(conf.ConfigurationError, match="TRUSTED_PROXIES"),
    ):
        AllowanceMiddleware(lambda request: HttpResponse())


# Trace ids and caps

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-request-id": "req_7f3c-1"}, "req_7f3c-1"),
        ({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}, TRACE),
        ({"x-request-id": "a b", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}, TRACE),
    ],
)
def test_a_well_formed_trace_id_is_kept(headers, expected):
    assert trace_id(RequestFactory().get("/", headers=headers)) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-request-id": "a" * 101},
        {"x-request-id": "<script>"},
        {"x-request-id": "a\nb"},
        {"x-request-id": "*"},
        {"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"},
        {"traceparent": f"ff-{TRACE}-b7ad6b7169203331-01"},
        {"traceparent": "00-short-b7ad6b7169203331-01"},
    ],
)
def test_any_other_trace_id_is_replaced(headers):
    found = trace_id(RequestFactory().get("/", headers=headers))
    assert uuid.UUID(hex=found).version == 4


@pytest.mark.django_db
@allowance(REQUEST_CAPS={"max_calls": 2, "max_cost": "0.05"})
def test_each_request_has_one_run_of_its_own(client):
    one, two = client.get("/whoami/").json(), client.get("/whoami/").json()
    assert one["first"]["runs"] == one["second"]["runs"] != two["first"]["runs"]
    assert len(one["first"]["runs"]) == 1


@allowance(REQUEST_CAPS={"max_calls": 2})
def test_the_cap_of_a_request_is_answered(client):
    response = client.get("/capped/")
    assert response.status_code == 429
    assert response.json()["code"] == "per_request_calls_exceeded"
    assert "Retry-After" not in response
