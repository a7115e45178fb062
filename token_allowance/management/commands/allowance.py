"""``manage.py allowance <subcommand>``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from token_allowance.exceptions import StoreUnavailable
from token_allowance.management.subcommands import (
    adjust,
    doctor,
    drain,
    drill,
    groups,
    jobs,
    price,
    rebuild,
    resume,
    status,
    stop,
    sync_prices,
)

SUBCOMMANDS = {
    "stop": stop,
    "resume": resume,
    "status": status,
    "drill": drill,
    "doctor": doctor,
    "price": price,
    "sync-prices": sync_prices,
    "jobs": jobs,
    "drain": drain,
    "rebuild": rebuild,
    "adjust": adjust,
    "groups": groups,
}


class Command(BaseCommand):
    help = "Stop model calls, and look after budgets: prices, leases, counters, corrections."

    def add_arguments(self, parser: CommandParser) -> None:
        choices = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for name, module in SUBCOMMANDS.items():
            texts = {"help": module.HELP, "description": module.HELP}
            module.add_arguments(choices.add_parser(name, **texts))

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        try:
            SUBCOMMANDS[subcommand].run(self.stdout, options)
        except StoreUnavailable as error:
            raise CommandError(str(error)) from error
