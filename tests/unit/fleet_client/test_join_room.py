"""A disk that can't keep what a join brings costs no token."""

import errno
import os
import time
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole
from covey_fleet_client import identity as module
from covey_fleet_client import join
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import load_identity
from covey_fleet_client.join import Admission, ensure_admitted
from kit.vaults import authority_in

pytestmark = pytest.mark.anyio


async def test_no_token_is_sent_from_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = load_identity(tmp_path / "agent")
    (tmp_path / "token").write_text("a pod's")
    (tmp_path / "authorities.pem").write_text(authority_in(tmp_path / "controller", time.time()).bundle_pem)
    admission = Admission(tmp_path / "token", tmp_path / "authorities.pem")

    def refuse(path: Path, _content: bytes | str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    async def nobody(*_: object, **__: object) -> bytes:
        raise AssertionError("the token was sent")

    monkeypatch.setattr(module, "write_private", refuse)
    monkeypatch.setattr(join, "call", nobody)
    with pytest.raises(FleetError, match=r"no space left.*The token was not sent") as raised:
        await ensure_admitted(identity, "https://127.0.0.1:1", CertificateRole.AGENT, "a", admission)
    assert raised.value.kind is FleetErrorKind.INVALID


def test_what_was_tried_is_gone_again(tmp_path: Path) -> None:
    identity = load_identity(tmp_path / "agent")
    before = set(identity.folder.iterdir())
    identity.ensure_room()
    assert set(identity.folder.iterdir()) == before
