"""Where a webhook may go: judged when a message is sent, by the addresses its name then has (C94).

The name is resolved once, every address it has must be public, and exactly those are connected to.
WEBHOOK_ALLOWED opens single hosts and networks, and plain http to them.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LONGEST = 2000
PORTS = {"https": 443, "http": 80}
NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\Z")
NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")  # as a last label: a way of writing IPv4
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Whatever ``is_global`` of some Python says, IPv6 is public here only, and not there.
UNICAST = ipaddress.IPv6Network("2000::/3")
CLOSED = (ipaddress.IPv6Network("2001::/23"), ipaddress.IPv6Network("3fff::/20"))


class Refused(Exception):
    """Nothing may be sent there. The text names no address: it is stored and shown."""


@dataclass(frozen=True, slots=True)
class Place:
    """A webhook's address, taken apart. ``target`` is path and query."""

    scheme: str
    host: str
    port: int
    target: str
    allowed: bool  # the operator has named this host

    @property
    def netloc(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def place(url: str, allowed: Iterable[str] = ()) -> Place:
    """The place a URL names; Refused for what can be seen to be wrong without asking anybody."""
    if len(url) > LONGEST or not url.isascii() or not url.isprintable() or set(url) & set(" \\"):
        raise Refused("the address holds characters that no URL has")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise Refused("the address is not a URL") from None
    if parts.scheme not in PORTS or not host:
        raise Refused("the address is not an https URL")
    if parts.username is not None or parts.password is not None:
        raise Refused("the address holds a user or a password")
    known = tuple(allowed)
    found = Place(
        parts.scheme, host, port or PORTS[parts.scheme], _target(parts), host in _hosts(known)
    )
    literal = _literal(host)
    if found.scheme != "https" and not (found.allowed or (literal and _within(literal, known))):
        raise Refused("the address is not https")
    if literal is not None:
        _judge(found, literal, known)
    return found


def addresses(found: Place, allowed: Iterable[str] = ()) -> list[Address]:
    """What may be connected to. The name is asked for once; OSError if it is not known."""
    literal = _literal(found.host)
    if literal is None:
        asked = socket.getaddrinfo(found.host, found.port, type=socket.SOCK_STREAM)
        numbers = [ipaddress.ip_address(str(place[0])) for *_, place in asked]
    else:
        numbers = [literal]
    known = tuple(allowed)
    for address in numbers:
        _judge(found, address, known)
    return list(dict.fromkeys(numbers))


def is_public(address: Address) -> bool:
    """Can this address only be reached over the internet, and is it one machine's?"""
    if isinstance(address, ipaddress.IPv6Address):
        if (inner := _inner(address)) is not None:
            return is_public(inner)
        if address not in UNICAST or any(address in network for network in CLOSED):
            return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


def _judge(found: Place, address: Address, allowed: tuple[str, ...]) -> None:
    if not (found.allowed or is_public(address) or _within(address, allowed)):
        raise Refused("the address is not public; WEBHOOK_ALLOWED can open it")


def _target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _literal(host: str) -> Address | None:
    """The number that is written as the host, None for a name; Refused for odd ways to write it."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if NUMBER.match(host.rpartition(".")[2]) or not NAME.match(host):
        raise Refused("the address names no host")
    return None


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that is reached through this one."""
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _hosts(allowed: tuple[str, ...]) -> set[str]:
    return {entry.lower() for entry in allowed if _network(entry) is None}


def _within(address: Address, allowed: tuple[str, ...]) -> bool:
    mapped = getattr(address, "ipv4_mapped", None) or address
    networks = [network for entry in allowed if (network := _network(entry))]
    return any(mapped in network for network in networks if network.version == mapped.version)


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None
