"""Case C94: where a webhook may go is judged when it is sent, by what its name then stands for."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.receivers import NAME, Receiver, certificate, drip, talking
from token_allowance.channels import addresses, posts
from token_allowance.channels.addresses import Refused

LOOPBACK = ("127.0.0.0/8",)
PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.7"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as serving:
        yield serving


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """What each name stands for: one list of addresses for each time that it is asked for."""
    known: dict[str, list[list[str]]] = {}

    def asked(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        found = known[host].pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    return known


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whatever is connected to; nothing really is."""
    made: list[Any] = []

    def connect(self: socket.socket, place: Any) -> None:
        made.append(place)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return made


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest/meta-data/",
        "https://[::ffff:169.254.169.254]/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.1/",
        "https://127.0.0.1./",
        "https://0.0.0.0/",
        "https://[::]/",
        "https://[::1]/",
        "https://[::127.0.0.1]/",
        "https://10.1.2.3/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://100.64.0.1/",
        "https://224.0.0.1/",
        "https://240.0.0.1/",
        "https://255.255.255.255/",
        "https://198.18.0.1/",
        "https://[fe80::1]/",
        "https://[fc00::1]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[64:ff9b::10.0.0.1]/",
        "https://[64:ff9b:1::1]/",
        "https://[2002:7f00:1::]/",
        "https://[2002:a00:1::]/",
        "https://[2001:0:7f00:1::]/",
        "https://[2001:db8::1]/",
        "https://[3fff::1]/",
        "https://[5f00::1]/",
        "https://[100::1]/",
        "http://93.184.216.34/",
        "http://169.254.169.254/",
        "http://[::ffff:169.254.169.254]/",
        "http://2130706433/",
        "http://ok.example/",
        "file:///etc/passwd",
        "ftp://ok.example/",
        "gopher://ok.example/",
        "//ok.example/",
        "ok.example",
        "",
        "https:///path",
        "https://user:pass@ok.example/",
        "https://ok.example@127.0.0.1/",
        "https://ok.example:99999/",
        "https://ok.example\\@127.0.0.1/",
        "https://ok.example/\r\nX: y",
        "https://ok.example/ ",
        "https://[::1/",
        "https://exa mple/",
        "https://ok。example/",
        "https://ok..example/",
        "https://" + "a" * 2000,
    ],
)
def test_c94_what_can_be_seen_to_be_wrong_is_refused_without_asking_or_connecting(
    url: str, names: dict[str, list[list[str]]], connects: list[Any]
) -> None:
    names["ok.example"] = [[PUBLIC]]
    with pytest.raises(Refused):
        posts.post(url, b"{}", {})
    assert connects == []
    assert names["ok.example"] == [[PUBLIC]]


@pytest.mark.parametrize(
    "found",
    [[PRIVATE], [PUBLIC, PRIVATE], ["127.0.0.1"], ["169.254.169.254"], ["::1"],
     ["::ffff:10.0.0.7"], ["64:ff9b::a00:7"], ["2002:a00:7::1"], ["fe80::1%1"]],
)  # fmt: skip
def test_c94_a_name_is_refused_for_any_address_that_is_not_public(
    found: list[str], names: dict[str, list[list[str]]], connects: list[Any]
) -> None:
    names["ok.example"] = [found]
    with pytest.raises(Refused, match="not public") as refused:
        posts.post("https://ok.example/", b"{}", {})
    assert not any(one in str(refused.value) for one in ("ok.example", *found))
    assert connects == []


def test_c94_a_name_is_asked_for_once_and_what_was_checked_is_connected_to(
    names: dict[str, list[list[str]]], connects: list[Any]
) -> None:
    names["ok.example"] = [[PUBLIC, "2606:2800:220::1"], [PRIVATE]]
    with pytest.raises(ConnectionRefusedError):
        posts.post("https://ok.example/", b"{}", {})
    assert connects == [(PUBLIC, 443), ("2606:2800:220::1", 443)]
    assert names["ok.example"] == [[PRIVATE]]


@pytest.mark.parametrize(
    "text",
    [PUBLIC, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2a00:1450::1"],
)
def test_what_is_reached_over_the_internet_is_public(text: str) -> None:
    assert addresses.is_public(ipaddress.ip_address(text))


def test_c94_redirects_are_not_followed_and_proxies_are_not_asked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    receiver.answers.append((302, {"Location": f"{receiver.url}&again"}, b"inside"))
    assert posts.post(receiver.url, b"{}", {}, allowed=LOOPBACK) == 302
    (only,) = receiver.received
    assert only.path == "/hook?token=very-secret"
    assert only.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_the_list_opens_hosts_and_networks_and_plain_http_to_them(
    receiver: Receiver, names: dict[str, list[list[str]]]
) -> None:
    names["inside"] = [["127.0.0.1"], ["127.0.0.1"], ["127.0.0.1"]]
    url = f"http://inside:{receiver.port}/x"
    assert posts.post(url, b"{}", {}, allowed=("Inside",)) == 200
    assert receiver.received[0].headers["host"] == f"inside:{receiver.port}"
    for allowed in ((), ("other", "10.0.0.0/8"), LOOPBACK):  # http is for what is named
        with pytest.raises(Refused):
            posts.post(url, b"{}", {}, allowed=allowed)
    with pytest.raises(Refused):
        posts.post(receiver.url, b"{}", {}, allowed=("10.0.0.0/8", "127.0.0.2"))
    assert posts.post(receiver.url, b"{}", {}, allowed=("127.0.0.1",)) == 200


def test_the_certificate_must_be_that_of_the_name(
    tmp_path: Path, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = certificate(tmp_path)

    def context() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(trusted))

    names.update({NAME: [["127.0.0.1"]] * 2, "other.example": [["127.0.0.1"]]})
    with Receiver(certificate=trusted).serving() as receiver:
        url = f"https://{{}}:{receiver.port}/hook"
        with pytest.raises(ssl.SSLCertVerificationError):  # signed by nobody we know
            posts.post(url.format(NAME), b"{}", {}, allowed=LOOPBACK)
        monkeypatch.setattr(posts, "tls_context", context)
        assert posts.post(url.format(NAME), b"{}", {}, allowed=LOOPBACK) == 200
        with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example"):
            posts.post(url.format("other.example"), b"{}", {}, allowed=LOOPBACK)
    assert [one.headers["host"] for one in receiver.received] == [f"{NAME}:{receiver.port}"]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "text", [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200, b"\x16\x03\x03\x40\x00" * 50]
)
def test_an_answer_that_drips_is_cut_off(scheme: str, text: bytes) -> None:
    began = time.monotonic()
    with (
        talking(drip(text, 0.05)) as port,
        pytest.raises((OSError, HTTPException)),
    ):
        posts.post(f"{scheme}://127.0.0.1:{port}/", b"{}", {}, allowed=LOOPBACK, seconds=0.5)
    assert time.monotonic() - began < 5  # 200 bytes would take 10 seconds


def test_of_an_answer_only_the_status_is_read() -> None:
    def say(visitor: socket.socket) -> None:
        visitor.recv(65536)
        visitor.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        visitor.recv(1)

    began = time.monotonic()
    with talking(say) as port:
        assert posts.post(f"http://127.0.0.1:{port}/", b"{}", {}, allowed=LOOPBACK) == 200
    assert time.monotonic() - began < 5
