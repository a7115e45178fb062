"""The demo project's settings, made fast and predictable for tests."""

from __future__ import annotations

from project.settings import *  # noqa: F403

SECRET_KEY = "one key for the test run, so that child processes agree"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
