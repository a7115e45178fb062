"""Somebody else's Django project: it installs our wheel and already owns an app `dashboard`.

    python .ci/scratch.py FOLDER      with the interpreter of an environment that holds the wheel

It must run outside the repository, so that nothing but the wheel can be imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

SETTINGS = """
SECRET_KEY = "scratch"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "dashboard",
    "token_allowance",
    "token_allowance_dashboard",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "token_allowance.middleware.AllowanceMiddleware",
]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = "collected"
"""

URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""

MANAGE = """
import os, sys
from token_allowance import allowance  # the door opens before django.setup()
from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
execute_from_command_line(sys.argv)
"""

DASHBOARD_MODELS = """
from django.db import models

class Widget(models.Model):
    name = models.CharField(max_length=20)

    class Meta:
        app_label = "dashboard"
"""

# A budget of 1,500 micro-dollars a day, a call that fits (1,100 held, 719 used), one that does not.
METERED_CALL = """
from django.test import override_settings
from dashboard.models import Widget
from token_allowance import allowance
from token_allowance.models import Limit, Price, Reservation

Widget.objects.create(name="theirs")
Price.objects.create(provider="openai", model="gpt-5-mini", input_mtok="0.25", output_mtok="2")
Limit.objects.create(tenant="*", window="day", unit="cost", amount=1_500)

gpt = {"provider": "openai", "model": "gpt-5-mini", "input_tokens": 1200}

def spend(tenant):
    with allowance.call(**gpt, max_output_tokens=400, tenant=tenant) as call:
        call.record(allowance.Usage(input_tokens=1180, output_tokens=212))
    (budget,) = allowance.remaining(tenant=tenant)
    assert (budget.used, budget.reserved) == (719, 0), budget
    try:
        with allowance.call(**gpt, max_output_tokens=400, tenant=tenant):
            raise SystemExit("a call over budget was admitted")
    except allowance.AllowanceExceeded as refusal:
        print(tenant, "refused:", refusal)

spend("acme")
row = Reservation.objects.get()
assert (row.state, row.cost_micros) == ("settled", 719), (row.state, row.cost_micros)
memory = {"BACKEND": "token_allowance.stores.memory.MemoryStore", "OPTIONS": {}}
with override_settings(TOKEN_ALLOWANCE={"STORE": memory}):
    spend("in-memory")
"""


def write_project(folder: Path) -> None:
    files = {
        "manage.py": MANAGE,
        "shop/__init__.py": "",
        "shop/settings.py": SETTINGS,
        "shop/urls.py": URLS,
        "dashboard/__init__.py": "",
        "dashboard/models.py": DASHBOARD_MODELS,
        "metered_call.py": METERED_CALL,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def check_contents() -> None:
    """The wheel brings its two packages, typed, and nothing of the demo or the tests."""
    names = [str(path) for path in distribution("token-allowance").files or ()]
    tops = {name.split("/")[0] for name in names if not name.startswith("..")}
    tops = {top for top in tops if not top.endswith(".dist-info")}
    assert tops == {"token_allowance", "token_allowance_dashboard"}, tops
    for package in sorted(tops):
        assert f"{package}/py.typed" in names, package
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def manage(folder: Path, *command: str) -> None:
    print("$ manage.py", *(part for part in command if "\n" not in part), flush=True)
    subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=True,
    )


def main(folder: Path) -> None:
    check_contents()
    write_project(folder)
    manage(folder, "check", "--fail-level", "WARNING")
    manage(folder, "makemigrations", "dashboard")
    manage(folder, "makemigrations", "--check", "--dry-run")
    manage(folder, "migrate", "--verbosity", "0")
    manage(folder, "collectstatic", "--noinput", "--verbosity", "0")
    manage(folder, "shell", "--verbosity", "0", "--command", METERED_CALL)
    print("scratch project: all good")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
