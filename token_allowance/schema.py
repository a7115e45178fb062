"""What the tables need beyond Django's models: triggers, and stored functions on PostgreSQL.

Installed by a migration and again after each ``migrate``, because ``--nomigrations`` makes tables
without them and a restored dump may lack them.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from django.db import connections, migrations, router
from django.db.backends.base.base import BaseDatabaseWrapper

POLICY_TABLES = {
    "token_allowance_limit": "limits",
    "token_allowance_limitincrease": "limits",
    "token_allowance_degraderule": "limits",
    "token_allowance_tenant": "tenants",
    "token_allowance_price": "prices",
    "token_allowance_modelalias": "prices",
    "token_allowance_switch": "switches",
}
VERSIONS = "token_allowance_policyversion"
SQLITE_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"


def statements(vendor: str) -> list[str]:
    """The SQL to run on this database; safe to run again. Empty where there is nothing to do."""
    if vendor == "postgresql":
        return [_text("postgresql.sql")]
    if vendor == "sqlite":
        own = _text("sqlite.sql").replace("{now}", SQLITE_NOW).strip().split("\n\n")
        return [_guarded(trigger) for trigger in [*own, *_sqlite_version_triggers()]]
    return []


def _text(name: str) -> str:
    return files("token_allowance.sql").joinpath(name).read_text(encoding="utf-8")


def _guarded(trigger: str) -> str:
    return trigger.replace("CREATE TRIGGER ", "CREATE TRIGGER IF NOT EXISTS ", 1)


def _sqlite_version_triggers() -> list[str]:
    """Two plain statements instead of an upsert: an outer OR IGNORE would change an upsert."""
    return [
        f"CREATE TRIGGER {table}_version_{event.lower()} AFTER {event} ON {table} BEGIN\n"
        f"    INSERT INTO {VERSIONS} (kind, number) SELECT '{kind}', 0\n"
        f"    WHERE NOT EXISTS (SELECT 1 FROM {VERSIONS} WHERE kind = '{kind}');\n"
        f"    UPDATE {VERSIONS} SET number = max(number + 1, {SQLITE_NOW})\n"
        f"    WHERE kind = '{kind}';\n"
        "END"
        for table, kind in POLICY_TABLES.items()
        for event in ("INSERT", "UPDATE", "DELETE")
    ]


def install(connection: BaseDatabaseWrapper) -> None:
    """Create or replace triggers and functions. Concurrent installs wait for each other."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_advisory_lock(8313, 2)")
        try:
            for statement in statements(connection.vendor):
                cursor.execute(statement)
        finally:
            if connection.vendor == "postgresql":
                cursor.execute("SELECT pg_advisory_unlock(8313, 2)")


def install_after_migrate(app_config: Any, using: str, **_: Any) -> None:
    model = app_config.get_model("Counter")
    connection = connections[using]
    if not router.allow_migrate_model(using, model):
        return
    if model._meta.db_table in connection.introspection.table_names():
        install(connection)


class InstallSQL(migrations.RunSQL):
    """RunSQL for one vendor; prints with ``sqlmigrate``, squashes and reverses like RunSQL."""

    def __init__(self, vendor: str, reverse_sql: Any = migrations.RunSQL.noop) -> None:
        super().__init__([*statements(vendor)], reverse_sql)
        self.vendor = vendor

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return self.__class__.__qualname__, [self.vendor], {"reverse_sql": self.reverse_sql}

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == self.vendor:
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == self.vendor:
            super().database_backwards(app_label, schema_editor, from_state, to_state)
