"""``manage.py demo``: one page on which a budget stops real HTTP model calls."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from project.demo import (
    database,
    figures,
    offers,
    promises,
    recurring,
    report,
    seed,
    server,
    simulation,
)
from project.demo import story as stories

FILE = "demo.sqlite3"
WHAT_TO_TRY = (
    "Ask as Ana: from 45 of her 50 cents on gpt-5-mini answers, and the eighth is refused.",
    "Run the agent: it is stopped after five model calls.",
    "Let an agent climb: in full, from 90 % on with a cheaper model, and then not at all.",
    "Race two calls of 8 cents at 40 of 50 cents: one is refused.",
    "Watch the ledger and the budgets beside it, then change a limit in the admin.",
)


class Command(BaseCommand):
    help = "Serve the demo on loopback, or check its promises. Needs no key and no network."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, help="Default: 8000, or a free one.")
        parser.add_argument("--keep", action="store_true", help="Go on with the last ledger.")
        parser.add_argument(
            "--check", action="store_true", help="Play the story without a browser; judge it."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _show_faults()
        if options["check"]:
            with tempfile.TemporaryDirectory(prefix="token-allowance-") as folder:
                self.check_promises(Path(folder) / FILE)
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            self.serve(settings.BASE_DIR / FILE, options["port"], keep=options["keep"])
        self.say("\nStopped.")

    def check_promises(self, path: Path) -> None:
        stories.wait_for_a_whole_day()
        database.prepare(path, keep=False)
        seed.policy()
        with simulation.running() as provider, server.running() as served:
            played = stories.play(served.url, provider)
        found = promises.judge(played)
        self.stdout.write(report.ledger(reversed(figures.lines(most=100))))
        self.stdout.write("")
        for text in played.told:
            self.stdout.write(f"| {text.strip()}".replace("\n", "\n| "))
            self.stdout.write("")
        self.stdout.write(report.verdicts(found))
        connections.close_all()
        broken = [verdict for verdict in found if not verdict.kept]
        if broken:
            raise CommandError(f"{len(broken)} of {len(found)} promises broken.")

    def serve(self, path: Path, port: int | None, *, keep: bool) -> None:
        self.say("Making the database, prices, two tenants and their limits…")
        database.prepare(path, keep=keep)
        seed.policy()
        password = seed.staff_password()
        try:
            opened = server.opened(port)
        except OSError as error:
            raise CommandError(f"Port {port} cannot be used: {error.strerror}.") from error
        with opened, simulation.running() as provider, recurring.running(self.say):
            self.tell(opened.url, provider.anthropic_url, password)
            opened.serve_forever(0.2)

    def tell(self, url: str, provider_url: str, password: str) -> None:
        real = [offer.label for offer in offers.offers() if offer.real]
        self.say(f"Simulated provider: {provider_url} (real HTTP, no real money)")
        if real:
            self.say(f"Also on the page: {'; '.join(real)}")
        self.say(f"\n  Open   {url}/")
        self.say(f"  Staff  {url}/allowance/now/")
        self.say(f"  Admin  {url}/admin/   user {seed.STAFF}   password {password}")
        self.say("")
        for number, text in enumerate(WHAT_TO_TRY, 1):
            self.say(f"  {number}. {text}")
        self.say("\nCtrl-C stops it.")

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _show_faults() -> None:
    """Without DEBUG, Django would mail them to nobody."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.ERROR)
    logging.getLogger("django.request").addHandler(handler)
