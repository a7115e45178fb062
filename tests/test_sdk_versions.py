"""Older and other SDKs: metered in the same way by the same transport, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.sdk_matrix.clients import SDKS
from tests.sdk_matrix.environments import ROOT, Unreachable, folders, pins

pytestmark = pytest.mark.sdks

WAYS = ("plain", "stream", "async", "async stream")
CHILD_SECONDS = 60


@pytest.fixture
def run(request, tmp_path):
    def run(pin):
        cache = request.config.cache.mkdir("sdks")
        try:
            path = [str(folder) for folder in folders(pin, cache)]
        except Unreachable as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"pip cannot install {pin} here: {error}")
        done = subprocess.run(
            [sys.executable, "-m", "tests.sdk_matrix", pin.partition("==")[0], str(tmp_path)],
            env={
                **{name: value for name, value in os.environ.items() if name != "PYTHONDEVMODE"},
                "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]),
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("pin", pins()[0])
def test_an_sdk_is_metered_whatever_its_version(run, pin):
    name, _, version = pin.partition("==")
    provider = SDKS[name].provider
    settled = [provider, "settled", [], 26, 9]
    answered = {"text": "Mild and bright.", "error": "", "requests": 1, "reserves": 1}
    retried = {**answered, "requests": 2, "reserves": 2}
    refused = {
        "text": "",
        "error": "token_allowance.exceptions.AllowanceExceeded",
        "requests": 0,
        "reserves": 1,
        "rows": [],
    }
    expected = {way: {**answered, "rows": [settled]} for way in WAYS}
    if SDKS[name].retries:
        released = [provider, "released", [], 0, 0]
        expected |= {f"{w}, retried": {**retried, "rows": [released, settled]} for w in WAYS}
    expected |= {f"{way}, refused": refused for way in WAYS}
    found = run(pin)
    assert found["version"] == version
    assert found["scenes"] == expected
