"""What a process still has to settle when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENDS_WITH_THE_STORE_DOWN = """
import atexit
import sys

def tell():
    sys.stdout.write(" ".join(Reservation.objects.values_list("state", flat=True)) + ".")

atexit.register(tell)  # the first registered is the last to run
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}},
    INSTALLED_APPS=["token_allowance"],
    USE_TZ=True,
)
django.setup()
from django.core.management import call_command
from token_allowance import allowance, conf
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Limit, Reservation

def down(settlement):
    raise StoreUnavailable("as the test says")

call_command("migrate", verbosity=0)
Limit.objects.create(window="total", unit="tokens", amount=1000)
store = conf.store()
store.settle = down
with allowance.call(provider="any", model="any", input_tokens=7, max_output_tokens=9) as call:
    call.record(allowance.Usage(input_tokens=7, output_tokens=8))
tell()
del store.settle
"""


def test_a_process_that_ends_in_order_settles_what_waited_for_the_store(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_THE_STORE_DOWN, str(tmp_path / "sqlite3")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "reserved.settled.")
