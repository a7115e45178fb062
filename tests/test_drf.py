from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import override_settings
from rest_framework.settings import api_settings
from rest_framework.test import APIClient, APIRequestFactory
from rest_framework.views import APIView

from tests.test_middleware import BROWSER, FIRST, LAST
from tests.urls_http import raised, spent
from token_allowance.api import exception_handler
from token_allowance.exceptions import Unattributed

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def urls() -> Iterator[None]:
    with override_settings(ROOT_URLCONF="tests.urls_http"):
        yield
    raised.clear()


@pytest.fixture(params=["middleware", "handler"])
def answered_by(request) -> Iterator[str]:
    """A refusal in a DRF view is answered by the middleware, or by DRF with our handler."""
    handled = request.param == "handler"
    middleware = [name for name in LAST if not handled or not name.startswith("token_allowance.")]
    rest = {"EXCEPTION_HANDLER": "token_allowance.api.exception_handler"} if handled else {}
    with override_settings(MIDDLEWARE=middleware, REST_FRAMEWORK=rest):
        api_settings.reload()
        yield request.param
    api_settings.reload()


@pytest.fixture
def token() -> dict[str, str]:
    get_user_model().objects.create_user("ann", pk=42)
    return {"authorization": "Bearer ann"}


@pytest.mark.parametrize("middleware", [LAST, FIRST], ids=["last", "first"])
def test_a_user_authenticated_inside_the_view_is_charged(token, middleware):
    with override_settings(MIDDLEWARE=middleware):
        seen = APIClient().get("/api/whoami/", headers=token).json()
    assert seen == {"before": "", "user": "42"}  # case C78


def test_a_refusal_in_a_view(answered_by):
    raised.append(spent())
    response = APIClient().post("/api/refuse/", {}, format="json")
    assert response.status_code == 429
    assert response["Content-Type"] == "application/problem+json"
    assert response["Retry-After"] == "41520"
    assert response["x-should-retry"] == "false"
    assert response["Cache-Control"] == "no-store"
    assert response.json()["code"] == "user_daily_budget_exceeded"


def test_a_browser_gets_the_page(answered_by):
    raised.append(spent())
    response = APIClient().get("/api/refuse/", headers={"accept": BROWSER})
    assert response.status_code == 429
    assert "You have used today" in response.content.decode()


@pytest.mark.parametrize("error", [KeyError("answer"), Unattributed()])
def test_bugs_stay_exceptions(answered_by, error):
    raised.append(error)
    with pytest.raises(type(error)):
        APIClient().get("/api/refuse/")


def test_drfs_own_errors_stay_its_own(answered_by):
    response = APIClient().delete("/api/refuse/")
    assert response.status_code == 405
    assert response.json() == {"detail": 'Method "DELETE" not allowed.'}


def test_a_handler_around_ours_can_go_on_from_the_document():
    request = APIView().initialize_request(APIRequestFactory().get("/"))
    response = exception_handler(spent(), {"request": request, "view": None})
    assert response.data["limit"] == "0.50"
    assert exception_handler(spent(), {}).status_code == 429
    assert exception_handler(KeyError(), {"request": request}) is None


def test_the_transaction_of_the_request_is_rolled_back(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with transaction.atomic():
        exception_handler(spent(), {})
        assert connection.needs_rollback
