from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "host"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.host.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["token_allowance"]
MIDDLEWARE = ["token_allowance.middleware.AllowanceMiddleware"]
TOKEN_ALLOWANCE = {"ATTRIBUTION": "tests.host.urls.who_pays"}
STATIC_URL = "static/"

if os.environ["HOST_DATABASE"] == "sqlite":
    DATABASES: dict[str, Any] = {
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    }
else:
    from project.settings import DATABASES as PROJECT

    DATABASES = {"default": {**PROJECT["default"], "TEST": {"NAME": os.environ["HOST_DATABASE"]}}}
