"""The digest of one file inside a wheel, as the wheel's own `RECORD` has it: read by ranges, or out of the whole wheel.

By ranges it says by which name other nodes have the file. It is as good as the index's files are, and no better:
whoever fetches the wheel itself holds it against the index's digest, and the file in it against the `RECORD`.
"""

import base64
import binascii
import csv
import logging
from collections.abc import Mapping

from covey_api.model import Archive
from covey_api.source import PypiSource

from covey_agent.artifacts.archive import ArchiveInvalid, Entry
from covey_agent.artifacts.pages import find_file
from covey_agent.artifacts.remote import RemoteFile
from covey_agent.artifacts.web import Web
from covey_agent.artifacts.wheel import ReadAt, locate_data, read_content, read_members
from covey_agent.ports import AgentError

logger = logging.getLogger(__name__)

# Of a wheel with 50,000 files.
_MAX_RECORD_BYTES = 8 * 1024 * 1024
_SUFFIX = ".dist-info/RECORD"


async def find_recorded_digest(web: Web, parsed: PypiSource, archive: Archive) -> str | None:
    """None where the wheel doesn't say, or can't be looked into: then it is fetched whole, and that tells why."""
    try:
        file = await find_file(web, parsed.project, archive.filename, archive.sha256)
        remote = RemoteFile(web, file.url, archive.filename, archive.size_bytes)
        members = await read_members(remote.read_at, remote.size_bytes)
        return await read_recorded_digest(remote.read_at, members, parsed.member)
    except (AgentError, ArchiveInvalid) as error:
        logger.info("'%s' gives no digest of '%s' beforehand: %s", archive.filename, parsed.member, error)
        return None


async def read_recorded_digest(read_at: ReadAt, members: Mapping[str, Entry], member: str) -> str | None:
    """None where the wheel doesn't say. AgentError, ArchiveInvalid, OSError."""
    return parse_record(await _read_text(read_at, members)).get(member)


async def read_record(read_at: ReadAt, members: Mapping[str, Entry]) -> Mapping[str, str]:
    """Digests in hex by member, of those that the wheel says. AgentError, ArchiveInvalid, OSError."""
    return parse_record(await _read_text(read_at, members))


async def _read_text(read_at: ReadAt, members: Mapping[str, Entry]) -> bytes:
    entry = next((each for name, each in sorted(members.items()) if name.endswith(_SUFFIX)), None)
    if entry is None or entry.size_bytes > _MAX_RECORD_BYTES:
        return b""
    record = bytearray()
    async for piece in read_content(read_at, await locate_data(read_at, entry)):
        record += piece
    return bytes(record)


def parse_record(record: bytes) -> Mapping[str, str]:
    """In hex, by member; without those that are listed by no sha256. Nothing of what can't be read."""
    found: dict[str, str] = {}
    try:
        for row in csv.reader(record.decode("utf-8").splitlines()):
            if len(row) > 1 and row[1].startswith("sha256=") and (digest := _decode(row[1].removeprefix("sha256="))):
                found.setdefault(row[0], digest)
    except (UnicodeDecodeError, csv.Error):
        return {}
    return found


def _decode(text: str) -> str:
    """Empty: it is no digest."""
    try:
        digest = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return ""
    return digest.hex() if len(digest) == 32 else ""
