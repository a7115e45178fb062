"""A project whose users are not Django's: AUTH_USER_MODEL swapped, with a UUID for a key."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.racers import ROOT

RUN_SECONDS = 60


def test_a_project_with_a_user_model_of_its_own():
    settings = {"DJANGO_SETTINGS_MODULE": "tests.people.settings", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "tests.people.cases"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | settings,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert "Ran 7 tests" in said, said
