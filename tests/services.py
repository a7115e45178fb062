"""pytest plugin (`-p tests.services`): every run has a real PostgreSQL and a real Redis.

DATABASE_URL and REDIS_URL are used where given; otherwise private servers start, before
pytest-django reads the settings. Child processes and xdist workers inherit the two variables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from urllib.parse import urlsplit

import pytest

from tests import servers

OWN_REDIS = "TESTS_OWN_REDIS"
started: list[servers.Server] = []
report: list[str] = []


# A wrapper, because pytest-django's own hook comes first among the others.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> Generator[None]:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        take_own_redis_database(worker)
    elif not {"-h", "--help", "-V", "--version"}.intersection(args):
        start_missing()
    return (yield)


def start_missing() -> None:
    begin = time.perf_counter()
    if not os.environ.get("DATABASE_URL"):
        postgres = servers.Postgres()
        started.append(postgres)
        os.environ["DATABASE_URL"] = postgres.url
    if not os.environ.get("REDIS_URL"):
        redis = servers.Redis()
        started.append(redis)
        os.environ["REDIS_URL"] = redis.url
        os.environ[OWN_REDIS] = "1"
    kinds = " and ".join(server.kind for server in started)
    took = f", started {kinds} in {time.perf_counter() - begin:.1f} s" if started else ", as given"
    urls = [urlsplit(os.environ[name]) for name in ("DATABASE_URL", "REDIS_URL")]
    where = " ".join(f"{url.scheme}://{url.hostname}:{url.port}" for url in urls)
    report.append(f"servers: {where}{took}")


def take_own_redis_database(worker: str) -> None:
    """PostgreSQL gives each worker its own database by name; Redis has sixteen, by number."""
    if os.environ.get(OWN_REDIS):
        number = int(worker.removeprefix("gw")) % 15 + 1
        os.environ["REDIS_URL"] = os.environ["REDIS_URL"].rpartition("/")[0] + f"/{number}"


def pytest_report_header() -> list[str]:
    return report


def pytest_unconfigure() -> None:
    while started:
        started.pop().stop()
