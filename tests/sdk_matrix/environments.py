"""One folder for each pinned version of an SDK, put before this environment on the path."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.sdk_matrix.clients import SDKS

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS = 120


class Unreachable(Exception):
    """pip could not install what is not here yet; the last line that it said."""


def pins() -> tuple[list[str], list[str]]:
    """The SDKs, and what some of them need that this environment does not have."""
    lines = (ROOT / "requirements" / "sdks.txt").read_text().split("\n")
    lines = [line for line in lines if line]
    sdks = [line for line in lines if line.partition("==")[0] in SDKS]
    return sdks, [line for line in lines if line not in sdks]


def folders(pin: str, cache: Path) -> list[Path]:
    """What has to be on the path to see this SDK; installed once. Raises Unreachable."""
    return [_installed([pin], cache), _installed(pins()[1], cache)]


def _installed(wanted: list[str], cache: Path) -> Path:
    python = f"python{sys.version_info.major}{sys.version_info.minor}"
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    folder = cache / f"{wanted[0]}-{python}-{digest}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        made = Path(temporary) / "made"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        options = ["--no-input", "--no-deps", "--no-compile", "--target", str(made)]
        done = subprocess.run(
            [*pip, *options, *wanted],
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            env={**os.environ, "PIP_RETRIES": "1"},
            check=False,
        )
        if done.returncode:
            raise Unreachable((done.stderr.strip() or "pip failed").splitlines()[-1])
        try:
            made.rename(folder)
        except OSError:  # another worker was faster
            if not folder.is_dir():
                raise
    return folder
