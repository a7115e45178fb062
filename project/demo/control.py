"""What operators do, as the story does it: they are told of budgets, and stop a feature from the
command line of another process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection
from django.utils import timezone

from project.demo.visitor import Answer, Visitor
from project.provider import Provider
from token_allowance.alerts import evaluation
from token_allowance.channels import outbox
from token_allowance.models import Channel
from token_allowance.signals import alert_sent

CHANNEL = "the story"
FEATURE = "agent"
SECONDS = 60


@dataclass(slots=True)
class Stopped:
    """What a stop did. ``effect_ms``: from the moment the command was back to the first refusal."""

    said: str = ""
    answer: Answer | None = None
    effect_ms: int = -1
    reached: int = -1
    after_resume: Answer | None = None


def told() -> list[str]:
    """The messages of an evaluation of now, as a channel gets them."""
    Channel.objects.get_or_create(name=CHANNEL, defaults={"kind": Channel.Kinds.SIGNAL})
    texts: list[str] = []

    def hear(channel: str, text: str, **_: Any) -> None:
        if channel == CHANNEL:
            texts.append(text)

    alert_sent.connect(hear)
    try:
        now = timezone.now()
        evaluation.evaluate(now)
        outbox.deliver(timezone.now())
    finally:
        alert_sent.disconnect(hear)
    return texts


def stopped(visitor: Visitor, provider: Provider) -> Stopped:
    """Stop the agent in another process, let somebody run it, and let it run again."""
    made = Stopped(said=command("stop", "--feature", FEATURE, "--reason", "a runaway loop"))
    back, before = time.perf_counter(), provider.totals().received
    made.answer = visitor.post("/agent/", user="ben", offer="openai")
    made.effect_ms = round(1000 * (time.perf_counter() - back))
    made.reached = provider.totals().received - before
    command("resume", "--feature", FEATURE, "--reason", "it was a drill")
    made.after_resume = visitor.post("/agent/", user="ben", offer="openai")
    return made


def command(*words: str) -> str:
    """What ``manage.py allowance …`` says, run as somebody would in another terminal."""
    made = subprocess.run(
        [sys.executable, str(settings.BASE_DIR / "manage.py"), "allowance", *words, "--by", "ana"],
        env={**os.environ, "DATABASE_URL": f"sqlite:///{connection.settings_dict['NAME']}"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return made.stdout.strip()
