"""Settings of the processes of a drill under test: the databases and the store of the test.

The host project of a drill is another process, and so are its probes: what a test has set reaches
them through the environment alone.
"""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

_given = json.loads(os.environ["DRILL_SETTINGS"])
for _alias, _name in _given["databases"].items():
    DATABASES[_alias]["NAME"] = _name
TOKEN_ALLOWANCE = _given["settings"]
INSTALLED_APPS = [*INSTALLED_APPS, *_given["apps"]]
