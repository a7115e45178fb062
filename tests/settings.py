"""The demo project's settings, made fast and predictable for tests.

Beside the default database, which is PostgreSQL, there is `sqlite`: a file, because stores open
connections of their own, which would not see a database in memory.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any

from project.settings import *  # noqa: F403
from project.settings import DATABASES

SECRET_KEY = "one key for the test run, so that child processes agree"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def run_folder() -> Path:
    """One folder for a whole run: xdist workers and child processes inherit its name.

    Locked, so that a later run removes it if this one is killed (`servers.sweep`).
    """
    if name := os.environ.get("TESTS_FOLDER"):
        return Path(name)
    if "PYTEST_VERSION" not in os.environ:  # a type checker reads the settings, and leaves abruptly
        return Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="token-allowance-files-"))
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.environ["TESTS_FOLDER"] = str(folder)
    atexit.register(remove, folder, lock, os.getpid())
    return folder


def remove(folder: Path, lock: IO[str], maker: int) -> None:
    lock.close()
    if os.getpid() == maker:  # not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


FOLDER = run_folder()
DATABASES["sqlite"] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": FOLDER / "sqlite3",
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        "timeout": 5,
    },
    "TEST": {"NAME": str(FOLDER / "test_sqlite3"), "DEPENDENCIES": []},
}

TOKEN_ALLOWANCE: dict[str, Any] = {}
