"""The demo: one page on which a budget stops model calls that really are sent over HTTP."""
