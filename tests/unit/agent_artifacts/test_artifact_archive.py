"""The ZIP readers against the standard library's writer, and against archives that lie."""

import asyncio
import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping

import pytest
from covey_agent.artifacts.archive import (
    TAIL_BYTES,
    ArchiveInvalid,
    Directory,
    Entry,
    Inflater,
    parse_directory,
    parse_end,
    parse_local,
)
from covey_agent.artifacts.wheel import ReadAt, locate_data, read_content, read_members
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.index import build_wheel

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\:\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)


def reader_of(archive: bytes) -> ReadAt:
    async def read_at(offset: int, length: int) -> bytes:
        assert offset >= 0
        return archive[offset : offset + length]

    return read_at


def members_of(archive: bytes) -> dict[str, Entry]:
    return asyncio.run(read_members(reader_of(archive), len(archive)))


def content_of(archive: bytes, name: str) -> bytes:
    async def read() -> bytes:
        read_at = reader_of(archive)
        entry = (await read_members(read_at, len(archive)))[name]
        content = bytearray()
        async for piece in read_content(read_at, await locate_data(read_at, entry)):
            content += piece
        return bytes(content)

    return asyncio.run(read())


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, st.binary(max_size=3000), min_size=1, max_size=6),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
def test_readers_find_what_the_standard_library_wrote(members: dict[str, bytes], compression: int) -> None:
    archive = build_wheel(members, compression=compression)
    assert set(members_of(archive)) == set(members)
    for name, content in members.items():
        assert content_of(archive, name) == content


def test_zip64_sizes_offsets_and_end_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    members = {"a.bin": bytes(range(256)) * 8, "b.bin": b"second" * 50}
    archive = build_wheel(members)
    assert b"PK\x06\x06" in archive
    assert {name: content_of(archive, name) for name in members} == members


def test_a_directory_longer_than_the_tail_is_read_by_itself() -> None:
    members = {f"folder/a-rather-long-name-of-a-member-{index:05}": b"" for index in range(1000)}
    archive = build_wheel(members)
    assert len(archive) > TAIL_BYTES
    assert set(members_of(archive)) == set(members)


def test_a_comment_that_looks_like_an_end_record_does_not_mislead() -> None:
    buffer = io.BytesIO(build_wheel({"a": b"x"}))
    with zipfile.ZipFile(buffer, "a") as file:
        file.comment = b"PK\x05\x06" + bytes(18) + b"more"
    assert set(members_of(buffer.getvalue())) == {"a"}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_archives_are_refused_or_read_but_nothing_else(data: st.DataObject) -> None:
    archive = bytearray(build_wheel({"a/b.gguf": b"GGUF" + bytes(500), "c": b"12345"}))
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(archive[: data.draw(st.integers(0, len(archive)))]) if data.draw(st.booleans()) else bytes(archive)
    try:
        for name in members_of(damaged):
            content_of(damaged, name)
    except ArchiveInvalid:
        return


@given(st.binary(max_size=400), st.integers(0, 1 << 40))
def test_any_bytes_as_a_tail_are_refused_or_give_a_place_inside(tail: bytes, before: int) -> None:
    try:
        directory = parse_end(tail, before + len(tail))
    except ArchiveInvalid:
        return
    assert 0 <= directory.offset <= before + len(tail)


@given(st.binary(max_size=400), st.integers(0, 8))
def test_any_bytes_as_a_directory_are_refused_or_read(data: bytes, entries: int) -> None:
    try:
        parse_directory(data, Directory(1 << 30, len(data), entries))
    except ArchiveInvalid:
        return


def archive_with(
    name: str, content: bytes = b"data", *, mode: int = 0o100644, method: int = 8, flags: int = 0
) -> bytes:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(info, content)
    archive = bytearray(buffer.getvalue())
    at = archive.rindex(b"PK\x01\x02")
    struct.pack_into("<HH", archive, at + 8, flags, method)
    return bytes(archive)


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (b"", "no end-of-directory record"),
        (b"<html>not found</html>", "no end-of-directory record"),
        (archive_with("../etc/passwd"), "leaves the archive's folder"),
        (archive_with("/etc/passwd"), "leaves the archive's folder"),
        (archive_with("a/../../b"), "leaves the archive's folder"),
        (archive_with("a\\..\\b"), "leaves the archive's folder"),
        (archive_with("C:/b"), "leaves the archive's folder"),
        (archive_with("link", b"/etc/passwd", mode=0o120777), "symbolic link"),
        (archive_with("a", method=12), "compressed by method 12"),
        (archive_with("a", flags=1), "encrypted"),
        (b"MZ" + archive_with("a"), "must end at byte"),
        (archive_with("a")[:-30], "no end-of-directory record"),
    ],
)
def test_archives_that_are_not_as_they_must_be_are_refused_in_words(archive: bytes, words: str) -> None:
    with pytest.raises(ArchiveInvalid, match=words):
        members_of(archive)


def test_two_members_of_one_name_are_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr("a", b"one")
        file.writestr("a", b"two")
    with pytest.raises(ArchiveInvalid, match="two members named 'a'"):
        members_of(buffer.getvalue())


def test_a_member_that_claims_an_impossible_size_is_refused() -> None:
    archive = bytearray(build_wheel({"a": b"x" * 100}))
    struct.pack_into("<L", archive, archive.rindex(b"PK\x01\x02") + 24, 1 << 30)
    with pytest.raises(ArchiveInvalid, match="claims to grow"):
        members_of(bytes(archive))


def test_more_members_than_bytes_for_them_are_refused() -> None:
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 5000, 5000, 46, 0, 0)
    with pytest.raises(ArchiveInvalid, match="claims 5000 members in 46 bytes"):
        parse_end(bytes(46) + end, 46 + len(end))


def deflated(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(content) + compressor.flush()


def inflate(entry: Entry, data: bytes, piece_bytes: int = 1000, step: int = 7) -> bytes:
    inflater = Inflater(entry, piece_bytes)
    content = bytearray()
    for at in range(0, len(data), step):
        for piece in inflater.feed(data[at : at + step]):
            assert len(piece) <= piece_bytes
            content += piece
    inflater.check_end()
    return bytes(content)


def entry_of(content: bytes, **changes: int) -> Entry:
    fields: Mapping[str, int] = {"method": 8, "crc": zlib.crc32(content), "size_bytes": len(content)} | changes
    return Entry("a", fields["method"], fields["crc"], len(deflated(content)), fields["size_bytes"], 0, 1 << 30)


@settings(deadline=None)
@given(st.binary(max_size=5000), st.integers(16, 2000), st.integers(1, 5000))
def test_inflating_in_any_steps_gives_the_content(content: bytes, piece_bytes: int, step: int) -> None:
    content = content + b"\0" * 20_000
    assert inflate(entry_of(content), deflated(content), piece_bytes, step) == content


def test_a_bomb_stops_at_the_size_it_claims() -> None:
    content = b"\0" * 10_000_000
    inflater = Inflater(entry_of(content, size_bytes=5000), 1000)
    with pytest.raises(ArchiveInvalid, match="more than the 5000 bytes it claims"):
        list(inflater.feed(deflated(content)))
    assert inflater.done_bytes <= 6000


@pytest.mark.parametrize(
    ("entry", "data", "words"),
    [
        (entry_of(b"content", crc=1), deflated(b"content"), "has checksum"),
        (entry_of(b"content", size_bytes=8), deflated(b"content"), "claims 8 bytes; it has 7"),
        (entry_of(b"content"), deflated(b"content")[:-3], "cut off"),
        (entry_of(b"content"), b"\xff" * 20, "damaged"),
    ],
)
def test_content_that_is_not_as_claimed_is_refused(entry: Entry, data: bytes, words: str) -> None:
    with pytest.raises(ArchiveInvalid, match=words):
        inflate(entry, data)


def test_local_header_must_agree_with_the_directory() -> None:
    archive = build_wheel({"a": b"x" * 100})
    entry = members_of(archive)["a"]
    assert parse_local(archive[:30], entry) == 31
    with pytest.raises(ArchiveInvalid, match="beyond the archive's data"):
        parse_local(archive[:28] + b"\xff\xff", entry)
    with pytest.raises(ArchiveInvalid, match="differ"):
        parse_local(archive[:8] + b"\0\0" + archive[10:30], entry)
    with pytest.raises(ArchiveInvalid, match="no local header"):
        parse_local(archive[1:31], entry)
