"""Somebody else's project, whose tests use ``token_allowance.testing``. Run by test_testing.py."""
