"""Channels: how an alert reaches people. Written with the alert, sent afterwards, until it is sent.

``outbox.tell(alert, event, now)`` writes one delivery for each channel that wants it, in the
caller's transaction; ``outbox.deliver(now)`` sends what is due.
"""

from __future__ import annotations
