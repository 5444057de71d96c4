"""Signatures that are files of a node's own: what is read, and what isn't waited for."""

import asyncio
import os
from pathlib import Path

import pytest
from covey_agent.artifacts.cache import Cache
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.web import Patience, Web
from covey_agent.ports import AgentError
from covey_agent.trust.signatures import SignatureFiles
from covey_api.model import ResolvedArtifact
from covey_api.reasons import FailureCause

ARTIFACT = ResolvedArtifact(source="file:///model.gguf", name="model.gguf", size_bytes=1, sha256="a" * 64)


def read(folder: Path, path: Path) -> bytes:
    async def whole() -> bytes:
        web = Web(IndexSettings("http://127.0.0.1:1/simple"), Patience())
        try:
            files = SignatureFiles(web, Cache(folder), HubSettings())
            return await files.read(f"file://{path}", ARTIFACT)
        finally:
            await web.close()

    return asyncio.run(whole())


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.sig"
    path.write_bytes(b"{}")
    assert read(tmp_path / "cache", path) == b"{}"


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing"])
def test_what_is_no_file_is_said_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "model.sig"
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    with pytest.raises(AgentError, match=r"must be a regular file|can't be opened on this node") as raised:
        read(tmp_path / "cache", path)
    assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE
