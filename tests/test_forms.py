from __future__ import annotations

import httpx2
import pytest

from token_allowance.providers.forms import Upload, form


def sent(**parts: object) -> tuple[str, bytes]:
    request = httpx2.Request("POST", "http://127.0.0.1/", **parts)  # type: ignore[arg-type]
    return request.headers["content-type"], request.read()


def test_fields_are_read_and_files_only_measured() -> None:
    content = bytes(range(256)) * 40
    fields = form(
        *sent(
            data={"model": "whisper-1", "prompt": "né\r\ntwo"},
            files={"file": ("a.wav", content, "audio/wav")},
        )
    )
    assert fields["model"] == "whisper-1"
    assert fields["prompt"] == "né\r\ntwo"
    assert fields["file"] == Upload(10_240, content[:4096])


def test_what_comes_more_than_once_is_a_list() -> None:
    files = [("image[]", ("a", b"1")), ("image[]", ("b", b"22")), ("mask", ("c", b"333"))]
    fields = form(*sent(data={"n": ["1", "2"], "x[]": "y"}, files=files))
    assert fields["n"] == ["1", "2"]
    assert fields["x[]"] == ["y"]
    assert fields["image[]"] == [Upload(1, b"1"), Upload(2, b"22")]
    assert fields["mask"] == Upload(3, b"333")


def test_a_file_that_holds_a_line_like_the_boundary_is_one_file() -> None:
    content = b"--other\r\n\r\nx--"
    assert form(*sent(files={"file": ("a", content)}))["file"] == Upload(len(content), content)


@pytest.mark.parametrize(
    "content", [b"", b"--b", b"--b\r\n", b"--b--", b"--b\r\nno head\r\n--b--", b"\xff" * 100]
)
def test_a_broken_form_has_no_fields(content: bytes) -> None:
    assert form("multipart/form-data; boundary=b", content) == {}


def test_a_form_without_a_boundary_is_refused() -> None:
    with pytest.raises(ValueError, match="boundary"):
        form("multipart/form-data", b"--b--")
