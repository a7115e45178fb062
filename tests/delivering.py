"""A process that delivers alerts: ``python -m tests.delivering``.

Told by one line of JSON: the databases, which of them, the instant, and whether it is killed after
what it sends first, before that is noted.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sys
from typing import Any

from tests.races import begin


def main() -> None:
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    begin(told["databases"])
    from django.conf import settings

    from token_allowance.channels import outbox, senders
    from token_allowance.models import Delivery

    settings.TOKEN_ALLOWANCE = {"WEBHOOK_ALLOWED": ["127.0.0.0/8"]}
    if told["killed"]:
        send = senders.send

        def send_and_die(delivery: Delivery, now: dt.datetime) -> None:
            send(delivery, now)
            os.kill(os.getpid(), signal.SIGKILL)

        senders.send = send_and_die
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    sent = outbox.deliver(dt.datetime.fromisoformat(told["now"]), told["using"])
    print(sent, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
