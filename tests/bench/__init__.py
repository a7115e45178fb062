"""What a metered call costs in time: ``python -m tests.bench [--quick]``."""
