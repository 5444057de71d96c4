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
    entry = next((each for name, each in sorted(members.items()) if name.endswith(_SUFFIX)), None)
    if entry is None or entry.size_bytes > _MAX_RECORD_BYTES:
        return None
    record = bytearray()
    async for piece in read_content(read_at, await locate_data(read_at, entry)):
        record += piece
    return parse_record(bytes(record), member)


def parse_record(record: bytes, member: str) -> str | None:
    """In hex. None for a member that isn't listed, or not by a sha256."""
    try:
        for row in csv.reader(record.decode("utf-8").splitlines()):
            if len(row) > 1 and row[0] == member and row[1].startswith("sha256="):
                text = row[1].removeprefix("sha256=")
                digest = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
                return digest.hex() if len(digest) == 32 else None
    except (UnicodeDecodeError, csv.Error, binascii.Error):
        return None
    return None
