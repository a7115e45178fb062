"""Each kind of channel: what arrives, and what is said when it does not."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
import smtplib
import socket
import time
from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.core import mail
from django.core.mail.backends import locmem

from tests.receivers import Receiver, talking
from tests.tellings import LOOPBACK, NOW, alert, channel
from token_allowance.channels import posts, senders, signatures, wording
from token_allowance.channels.payload import payload
from token_allowance.models import Channel, Delivery
from token_allowance.signals import alert_sent

pytestmark = pytest.mark.django_db
SECRETS = ("very-secret", "127.0.0.1", "/hook", "token=")


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.TOKEN_ALLOWANCE = LOOPBACK


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as serving:
        yield serving


def delivery(to: Channel, **given: Any) -> Delivery:
    fired = alert(**given)
    return Delivery(alert=fired, channel=to, event="fired", payload=payload(fired, "fired", NOW))


def failure(one: Delivery) -> senders.Failed:
    with pytest.raises(senders.Failed) as failed:
        senders.send(one, NOW)
    return failed.value


def test_a_mail_goes_to_all_recipients_with_an_id_of_the_event(settings: Any) -> None:
    settings.DEFAULT_FROM_EMAIL = "allowance@example.com"
    one = delivery(channel(address="ops@example.com, ana@example.com;\n bob@example.com"))
    senders.send(one, NOW)
    (sent,) = mail.outbox
    assert sent.to == ["ops@example.com", "ana@example.com", "bob@example.com"]
    assert sent.from_email == "allowance@example.com"
    assert sent.subject == wording.subject(one.payload)
    assert sent.body == wording.body(one.payload)
    assert one.payload["id"] in sent.message()["Message-ID"]


def test_hostile_names_add_no_header() -> None:
    senders.send(delivery(channel(), title="x\r\nBcc: all@example.com\r\n\r\nHello"), NOW)
    (sent,) = mail.outbox
    assert "Bcc" not in sent.message()
    assert sent.subject == "[BLOCKED] x Bcc: all@example.com Hello"


def test_slack_gets_text(receiver: Receiver) -> None:
    one = delivery(channel(kind="slack", address=receiver.url))
    senders.send(one, NOW)
    (got,) = receiver.received
    assert got.headers["content-type"] == "application/json"
    assert json.loads(got.body) == wording.slack(one.payload)
    assert not set(got.headers) & {signatures.SIGNATURE, "authorization", "cookie"}


def test_a_webhook_gets_all_fields_signed_over_id_timestamp_and_body(receiver: Receiver) -> None:
    hook = channel(kind="webhook", address=receiver.url)
    one = delivery(hook)
    senders.send(one, NOW)
    senders.send(one, NOW + dt.timedelta(minutes=1))
    first, second = receiver.received
    assert json.loads(first.body) == one.payload
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == one.payload["id"]
    assert first.headers["webhook-timestamp"] == str(int(NOW.timestamp()))
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    key = base64.b64decode(hook.secret.removeprefix("whsec_"))
    assert len(key) == 32
    for got in (first, second):
        signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode()
        made = hmac.new(key, signed + got.body, hashlib.sha256).digest()
        assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(made).decode()}"


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of its specification."""
    made = signatures.signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
        b'{"test": 2432232314}',
    )  # fmt: skip
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_channel_has_a_secret_of_its_own(receiver: Receiver) -> None:
    made = {channel(kind="webhook", name=str(n)).secret for n in range(3)}
    assert len(made) == 3
    unsigned = channel(kind="webhook", address=receiver.url, secret="")
    failed = failure(delivery(unsigned))
    assert (str(failed), failed.final) == (
        "the channel has no secret to sign with; give it a new one", True,
    )  # fmt: skip
    assert receiver.received == []


def test_a_signal_is_sent_with_the_channel_the_fields_and_the_text() -> None:
    heard: list[Any] = []

    def receive(**given: Any) -> None:
        heard.append(given)

    one = delivery(channel(kind="signal", name="pager"))
    alert_sent.connect(receive)
    try:
        senders.send(one, NOW)
    finally:
        alert_sent.disconnect(receive)
    assert heard[0]["channel"] == "pager"
    assert heard[0]["payload"] == one.payload
    assert heard[0]["text"] == wording.text(one.payload)


def test_a_receiver_of_the_signal_that_raises_is_a_failure() -> None:
    def receive(**_: Any) -> None:
        raise RuntimeError("secret words")

    alert_sent.connect(receive)
    try:
        assert str(failure(delivery(channel(kind="signal")))) == "RuntimeError"
    finally:
        alert_sent.disconnect(receive)


@pytest.mark.parametrize(
    ("status", "text", "final"),
    [(500, "HTTP 500", False), (404, "HTTP 404", False), (429, "HTTP 429", False),
     (410, "HTTP 410", True), (301, "HTTP 301: redirects are not followed", True),
     (302, "HTTP 302: redirects are not followed", True), (204, None, False)],
)  # fmt: skip
def test_c94_only_the_status_of_an_answer_is_kept(
    receiver: Receiver, status: int, text: str | None, final: bool
) -> None:
    receiver.answers.append((status, {"Location": "http://127.0.0.1/"}, b"inside knowledge"))
    one = delivery(channel(kind="webhook", address=receiver.url))
    if text is None:
        senders.send(one, NOW)
    else:
        failed = failure(one)
        assert (str(failed), failed.final) == (text, final)
    assert len(receiver.received) == 1


@pytest.mark.parametrize("kind", ["slack", "webhook"])
def test_c94_an_address_inside_is_refused_for_good(kind: str, settings: Any, receiver: Receiver):
    settings.TOKEN_ALLOWANCE = {}
    failed = failure(delivery(channel(kind=kind, address=receiver.url)))
    assert failed.final
    assert str(failed).startswith("refused: ")
    assert not any(word in str(failed) for word in SECRETS)
    assert receiver.received == []


def closed_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def test_what_cannot_be_reached_is_said_without_the_address() -> None:
    url = f"http://127.0.0.1:{closed_port()}/hook?token=very-secret"
    failed = failure(delivery(channel(kind="webhook", address=url)))
    assert str(failed) == "ConnectionRefusedError: Connection refused"
    assert not failed.final


def test_an_answer_that_does_not_come_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts.post, "__kwdefaults__", {"allowed": (), "seconds": 0.3})

    def say(visitor: socket.socket) -> None:
        while visitor.recv(65536):
            """Listen, and say nothing."""

    with talking(say) as port:
        failed = failure(delivery(channel(kind="slack", address=f"http://127.0.0.1:{port}/")))
    assert str(failed) == "timed out"


def test_what_is_no_http_is_said_without_its_words() -> None:
    def say(visitor: socket.socket) -> None:
        visitor.recv(1 << 20)
        visitor.sendall(b"SSH-2.0-inside knowledge\r\n")

    with talking(say) as port:
        failed = failure(delivery(channel(kind="slack", address=f"http://127.0.0.1:{port}/")))
    assert str(failed) == "the other side sent no answer"


@pytest.mark.parametrize(
    ("raised", "text"),
    [(smtplib.SMTPAuthenticationError(535, b"password hunter2"), "SMTPAuthenticationError 535"),
     (smtplib.SMTPServerDisconnected("ops@example.com"), "SMTPServerDisconnected"),
     (ValueError("hunter2"), "ValueError")],
)  # fmt: skip
def test_what_a_mail_server_says_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, text: str
) -> None:
    def send(self: locmem.EmailBackend, *_: Any) -> int:
        raise raised

    monkeypatch.setattr(locmem.EmailBackend, "send_messages", send)
    assert str(failure(delivery(channel()))) == text


def test_a_mail_server_that_says_nothing_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """Django's own default is to wait for ever."""
    monkeypatch.setattr(senders, "MAIL_SECONDS", 0.3)
    began = time.monotonic()
    backend = "django.core.mail.backends.smtp.EmailBackend"

    def say(visitor: socket.socket) -> None:
        visitor.recv(1)

    with talking(say) as port:
        if django.VERSION >= (6, 1):
            options = {"host": "127.0.0.1", "port": port}
            settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": options}}
        else:
            settings.EMAIL_BACKEND = backend
            settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        failed = failure(delivery(channel()))
    assert (str(failed), failed.final) == ("SMTPServerDisconnected", False)
    assert time.monotonic() - began < 10


def test_a_channel_that_names_nobody_is_given_up_at_once() -> None:
    assert failure(delivery(channel(address=" , "))).final
