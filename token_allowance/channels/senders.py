"""One way to send for each kind of channel. Each sends a whole message or raises Failed."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import re
import smtplib
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from django.core import mail
from django.core.mail import EmailMessage
from django.core.mail.utils import DNS_NAME

from token_allowance import conf
from token_allowance.channels import addresses, posts, signatures, wording
from token_allowance.models import Channel, Delivery
from token_allowance.signals import alert_sent

MOST_ERROR = 300  # of text that is kept
MAIL_SECONDS = 10.0  # for each step of SMTP, where the project sets none
GONE = 410


class Failed(Exception):
    """A message was not sent. The text is stored and shown: no addresses, secrets or answers.

    ``final``: trying again would not help before somebody has changed something.
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text[:MOST_ERROR])
        self.final = final


def send(delivery: Delivery, now: dt.datetime) -> None:
    """Send one message to its channel; Failed if anything goes wrong."""
    channel = delivery.channel
    try:
        SENDERS[channel.kind](channel, delivery.payload, now)
    except Failed:
        raise
    except addresses.Refused as error:
        raise Failed(f"refused: {error}", final=True) from error
    except Exception as error:
        raise Failed(_said(error)) from error


def by_email(channel: Channel, payload: Mapping[str, Any], now: dt.datetime) -> None:
    """One mail to all. Its Message-ID is the event's: many mail servers drop a second one."""
    recipients = recipients_of(channel.address)
    if not recipients:
        raise Failed("the channel names nobody", final=True)
    message = EmailMessage(
        wording.subject(payload),
        wording.body(payload),
        to=recipients,
        headers={
            "Message-ID": f"<{payload['id']}.{channel.pk}@{DNS_NAME}>",
            "Auto-Submitted": "auto-generated",
        },
    )
    if not _mailer().send_messages([message]):
        raise Failed("the mail server took it for nobody")


def _mailer() -> Any:
    """The project's mail backend. One that would wait for ever is told not to."""
    mailers: Any = getattr(mail, "mailers", None)  # from Django 6.1 on
    found: Any = mailers.default if mailers is not None else mail.get_connection()
    if getattr(found, "timeout", MAIL_SECONDS) is None:
        found.timeout = MAIL_SECONDS
    return found


def by_slack(channel: Channel, payload: Mapping[str, Any], now: dt.datetime) -> None:
    _post(channel, json.dumps(wording.slack(payload)).encode(), {})


def by_webhook(channel: Channel, payload: Mapping[str, Any], now: dt.datetime) -> None:
    body = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    id, moment = str(payload["id"]), int(now.timestamp())
    try:
        signed = signatures.headers(channel.secret, id, moment, body)
    except ValueError as error:
        raise Failed(str(error), final=True) from error
    _post(channel, body, signed)


def by_signal(channel: Channel, payload: Mapping[str, Any], now: dt.datetime) -> None:
    """What a receiver raises is a failure, and it hears of the same event again."""
    for _, answer in alert_sent.send_robust(
        sender=Channel, channel=channel.name, payload=dict(payload), text=wording.text(payload)
    ):
        if isinstance(answer, Exception):
            raise answer


SENDERS: dict[str, Callable[[Channel, Mapping[str, Any], dt.datetime], None]] = {
    Channel.Kinds.EMAIL: by_email,
    Channel.Kinds.SLACK: by_slack,
    Channel.Kinds.WEBHOOK: by_webhook,
    Channel.Kinds.SIGNAL: by_signal,
}


def recipients_of(address: str) -> list[str]:
    return [one for part in re.split(r"[,;\s]+", address) if (one := part.strip())]


def _post(channel: Channel, body: bytes, headers: Mapping[str, str]) -> None:
    allowed = conf.current().WEBHOOK_ALLOWED
    status = posts.post(channel.address.strip(), body, headers, allowed=allowed)
    if 300 <= status < 400:
        raise Failed(f"HTTP {status}: redirects are not followed", final=True)
    if not 200 <= status < 300:
        raise Failed(f"HTTP {status}", final=status == GONE)


def _said(error: Exception) -> str:
    """What kind of error it was: its own text may hold an address or an answer."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{type(error).__name__} {error.smtp_code}"
    if isinstance(error, http.client.RemoteDisconnected | http.client.BadStatusLine):
        return "the other side sent no answer"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
