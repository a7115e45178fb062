"""Reading a multipart form, as uploads are sent: its fields, and its files only by their size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from token_allowance.providers.fields import LARGEST_COUNT

FORM = "multipart/form-data"
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name="?([^";\r\n]{1,100})"?', re.IGNORECASE)
_FILE = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)
_LONGEST_FIELD_BYTES = 1024 * 1024
_HEAD_BYTES = 4096  # of a file: enough for the header of a sound or picture


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form: how large it is, and how it begins."""

    size_bytes: int
    head: bytes = b""


def form(content_type: str, content: bytes) -> dict[str, object]:
    """The fields of a form, files as Upload; a name that ends in ``[]`` or comes twice is a list.

    Raises ValueError for what is no form.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise ValueError("the form names no boundary")
    fields: dict[str, object] = {}
    for name, value in _parts(content, b"--" + found.group(1).encode()):
        known = fields.get(name)
        if known is None and not name.endswith("[]"):
            fields[name] = value
        elif isinstance(known, list):
            known.append(value)
        else:
            fields[name] = [value] if known is None else [known, value]
    return fields


def _parts(content: bytes, boundary: bytes) -> Iterator[tuple[str, str | Upload]]:
    """Cuts at boundaries that begin a line; a file is measured in place and never copied whole."""
    start = content.find(boundary)
    while start >= 0:
        start += len(boundary)
        end = content.find(b"\r\n" + boundary, start)
        if end < 0:
            return
        head_end = content.find(b"\r\n\r\n", start, end)
        named = _NAME.search(content, start, max(head_end, start))
        if head_end >= 0 and named is not None:
            name = named.group(1).decode("utf-8", "replace")
            begin = head_end + 4
            size = end - begin
            if _FILE.search(content, start, head_end):
                yield (
                    name,
                    Upload(
                        min(size, LARGEST_COUNT), content[begin : min(end, begin + _HEAD_BYTES)]
                    ),
                )
            elif size <= _LONGEST_FIELD_BYTES:
                yield name, content[begin:end].decode("utf-8", "replace")
        start = end + 2
