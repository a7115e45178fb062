"""The servers and the faults that the tests of RedisStore rely on."""

from __future__ import annotations

import signal
import threading
import time

import pytest
import redis
from redis.cluster import RedisCluster
from redis.exceptions import AskError

from tests import fault_proxy, redis_servers
from tests.fault_proxy import Fault, Proxy


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=0.3, retry=None, protocol=2)


@pytest.fixture
def proxy(redis_server):
    with Proxy(redis_server.port, "gate") as made:
        yield made


def test_a_durable_redis_keeps_what_it_has_acknowledged_when_it_is_killed(durable_redis):
    for number in range(1, 4):
        assert durable_redis.ask("INCR", "kept") == number
        before = durable_redis.facts("server")["run_id"]
        durable_redis.halt(signal.SIGKILL)
        durable_redis.resume()
        assert durable_redis.facts("server")["run_id"] != before
    assert durable_redis.ask("GET", "kept") == b"3"


def test_a_redis_that_keeps_nothing_is_empty_after_a_kill(redis_server):
    redis_server.ask("SET", "a", 1)
    redis_server.halt()
    redis_server.resume()
    assert redis_server.ask("DBSIZE") == 0


def test_a_replica_follows_refuses_writes_and_is_promoted(redis_server):
    replica = redis_servers.Redis()
    try:
        redis_server.ask("SET", "a", 1)
        replica.follow(redis_server)
        assert replica.ask("GET", "a") == b"1"
        with pytest.raises(redis.ReadOnlyError):
            replica.ask("SET", "a", 2)
        redis_server.halt()
        replica.promote()
        assert replica.ask("INCR", "a") == 2
    finally:
        replica.stop()


def test_a_redis_with_little_memory_refuses_to_grow():
    server = redis_servers.Redis("--maxmemory", "1", "--maxmemory-policy", "noeviction")
    try:
        assert server.ask("GET", "a") is None
        with pytest.raises(redis.OutOfMemoryError):
            server.ask("SET", "a", 1)
    finally:
        server.stop()


def test_valkey_runs_scripts(valkey):
    assert valkey.ask("EVAL", "return server.call('PING')", 0) == b"PONG"
    assert int(valkey.facts("server")["valkey_version"].split(".")[0]) >= 8


def test_the_cluster_spreads_its_slots_and_moves_one(cluster):
    with RedisCluster.from_url(cluster.url) as spread:
        for number in range(20):
            assert spread.set(f"{{{number}}}:a", number)
        slot = spread.keyslot("{7}:a")
        holders = {cluster.holder(s).port for s in (0, 8192, 16383)}
        assert holders == {node.port for node in cluster.nodes}
        source = cluster.holder(slot)
        target = next(node for node in cluster.nodes if node is not source)
        finish = cluster.begin_move(slot, target)
        with pytest.raises(AskError):
            source.ask("SET", "{7}:new", 1)
        finish()
        assert cluster.holder(slot) is target
        assert spread.get("{7}:a") == b"7"
        spread.delete("{7}:a")
        cluster.begin_move(slot, source)()


def test_the_proxy_passes_on_and_names_what_it_sees(proxy):
    with client(proxy.url) as through:
        assert through.set("a", "x\r\n" * 50_000)
        assert len(through.get("a")) == 150_000
        assert through.lrange("none", 0, -1) == []
        with pytest.raises(redis.ResponseError):
            through.lpush("a", 1)
        gate = fault_proxy.script("gate")
        assert through.eval(gate.source, 1, "g", "me", "5000", "take") == 1
        assert through.evalsha(gate.sha.decode(), 1, "g", "me", "0", "open") == 1
    assert (proxy.count("set"), proxy.count("lpush"), proxy.count("gate")) == (1, 1, 2)


def test_a_swallowed_answer_belongs_to_a_command_that_was_executed(proxy, redis_server):
    with client(proxy.url) as through:
        assert through.incr("a") == 1
        proxy.fault(fault_proxy.SWALLOW, "incrby", times=2)
        for _ in range(2):
            with pytest.raises(redis.TimeoutError):
                through.incr("a")
        assert through.incr("a") == 4


@pytest.mark.parametrize(
    ("fault", "error", "executed"),
    [
        (fault_proxy.CUT_AFTER, redis.ConnectionError, True),
        (fault_proxy.CUT_BEFORE, redis.ConnectionError, False),
        (fault_proxy.BLACK_HOLE, redis.TimeoutError, False),
        (Fault(error="OOM command not allowed"), redis.OutOfMemoryError, False),
        (Fault(error="READONLY You can't write"), redis.ReadOnlyError, False),
    ],
    ids=["cut after", "cut before", "black hole", "OOM", "READONLY"],
)
def test_faults_of_one_command(proxy, redis_server, fault, error, executed):
    with client(proxy.url) as through:
        assert through.ping()
        proxy.fault(fault, "set")
        with pytest.raises(error):
            through.set("a", 1)
        assert redis_server.ask("EXISTS", "a") == executed
        assert through.set("a", 2)


def test_a_command_is_kept_until_its_client_has_long_gone(proxy, redis_server):
    late = threading.Event()
    with client(proxy.url) as through:
        proxy.fault(Fault(until=late), "set")
        with pytest.raises(redis.TimeoutError):
            through.set("a", 1)
        assert redis_server.ask("EXISTS", "a") == 0
        late.set()
        redis_servers.until(lambda: redis_server.ask("EXISTS", "a") == 1, "it never came")


def test_refused_cut_and_healed(proxy):
    with client(proxy.url) as through:
        assert through.ping()
        proxy.down()
        with pytest.raises(redis.ConnectionError):
            through.ping()
        proxy.heal()
        assert through.ping()
        proxy.always(Fault(delay_seconds=0.1))
        began = time.monotonic()
        assert through.ping()
        assert time.monotonic() - began >= 0.1
        assert proxy.accepted == 2


def test_a_frozen_redis_accepts_and_does_not_answer(redis_server):
    with client(redis_server.url) as asking:
        redis_server.freeze()
        with pytest.raises(redis.TimeoutError):
            asking.ping()
        redis_server.go_on()
        assert asking.ping()
