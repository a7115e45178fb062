"""What a host project may listen to."""

from __future__ import annotations

from django.dispatch import Signal

#: Sent once a call is finished and its end is in the store, in the thread that settled it. What a
#: receiver raises is logged and costs the call nothing. With ``provider``, ``model``, ``feature``
#: (text), ``state`` ("settled" or "released"), ``flags`` (a tuple of text such as "estimated"; what
#: the store alone has noted, as "would_refuse" of a soft limit, is in the ledger), ``cost_micros``
#: and ``reserved_micros`` (micro-dollars, None: no price is known), ``input_tokens`` and
#: ``output_tokens``. No names of people, and no words of a prompt or an answer. Not sent for a call
#: that ended with its lease.
call_finished = Signal()
TOLD = (
    "provider", "model", "feature", "state", "cost_micros", "reserved_micros", "input_tokens",
    "output_tokens",
)  # fmt: skip

#: Sent for a channel of kind "signal", with ``channel`` (its name), ``payload`` (the message as
#: fields, see ``channels/payload.py``) and ``text`` (as it would be mailed). The same ``id`` in the
#: payload may come twice. A receiver that raises is told again, as a failed mail would be.
alert_sent = Signal()
