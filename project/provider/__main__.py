"""`python -m project.provider --port N`: the provider alone; prints its URL when it is ready."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

from project.provider.server import Provider


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m project.provider", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free port")
    parser.add_argument("--until-stdin-closes", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), Provider(options.port) as provider:
        sys.stdout.write(f"{provider.anthropic_url}\n")
        sys.stdout.flush()
        if options.until_stdin_closes:
            sys.stdin.read()
        else:
            signal.pause()


if __name__ == "__main__":
    main()
