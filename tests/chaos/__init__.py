"""Callers killed at random and a database that goes away, and what the books say afterwards."""
