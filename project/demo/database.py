"""The demo's own SQLite file."""

from __future__ import annotations

from pathlib import Path

from django.core.management import CommandError, call_command
from django.db import connection, connections

SUFFIXES = ("", "-wal", "-shm")


def prepare(path: Path, *, keep: bool) -> None:
    """Make the tables in this file; one that is there is deleted first, or kept."""
    if connection.vendor != "sqlite":
        raise CommandError(
            "The demo keeps its data in a SQLite file of its own, and DATABASE_URL names another "
            "database. Start it with: env -u DATABASE_URL ./run demo"
        )
    # As Django's test runner does: one dict serves the connections of all threads.
    connections.close_all()
    connection.settings_dict["NAME"] = str(path)
    if not keep:
        for suffix in SUFFIXES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    call_command("migrate", verbosity=0, interactive=False)
