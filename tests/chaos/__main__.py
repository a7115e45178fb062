"""Kill callers and crash the database or Redis under load, then print what the books say.

``python -m tests.chaos [--seconds 60] [--database sqlite | --store redis]``, which is
``./run bench chaos``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests import servers

MOST_SECONDS = 300
DURABLE = ("-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "full_page_writes=on")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./run bench chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--store", choices=("database", "redis"), default="database")
    parser.add_argument("--seed", type=int, default=46)
    asked = parser.parse_args(arguments)
    if not 1 <= asked.seconds <= MOST_SECONDS:
        parser.error(f"--seconds must be between 1 and {MOST_SECONDS}")
    if (asked.store, asked.database) == ("redis", "sqlite"):
        parser.error("--store redis keeps its ledger in PostgreSQL here")
    signal.alarm(int(asked.seconds) + 90)
    with ExitStack() as stack:
        prefix = "allowance-chaos-"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        postgres = None
        os.environ["DATABASE_URL"] = f"sqlite:///{folder / 'default'}"
        if asked.database == "postgresql":
            postgres = servers.Postgres(*DURABLE)
            stack.callback(postgres.stop)
            os.environ["DATABASE_URL"] = postgres.url
        os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "TESTS_FOLDER": str(folder)}
        import django

        django.setup()
        report = made(asked.store, folder, postgres, asked.seed, stack).run(asked.seconds)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return bool(report["problems"])


def made(
    store: str, folder: Path, postgres: servers.Postgres | None, seed: int, stack: ExitStack
) -> Any:
    """The chaos around this store."""
    from tests.chaos.redis_run import RedisChaos
    from tests.chaos.run import Chaos

    if store == "database" or postgres is None:
        return Chaos(folder, postgres, seed)
    chaos = RedisChaos(folder, postgres, seed)
    stack.callback(chaos.stop)
    return chaos


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
