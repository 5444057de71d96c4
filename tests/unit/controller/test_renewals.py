"""A certificate that is refused while its renewal is under way, and changes of the list that come back out of order."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole, JoinRequest
from covey_controller.authority import BACKDATED
from covey_controller.denials import CertificateDenied, Denials, open_denials
from covey_controller.fleet_api.admission import Admission
from covey_controller.serving.answers import ApiError, ApiReason
from covey_controller.serving.protocol import Peer
from covey_controller.stores.files.vault import FilesVault
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import CertificateSigningRequestBuilder, Name
from kit.vaults import finish, tokens_in, trust_in

AGENT = CertificateRole.AGENT
NOW = 1_800_000_000


class HookedVault(FilesVault):
    """Does something once before it replaces, or once after."""

    before: Callable[[], Awaitable[None]] | None = None
    after: Callable[[], Awaitable[None]] | None = None

    async def replace(self, name: str, content: bytes, *, seen: bytes | None) -> None:
        hook, self.before = self.before, None
        if hook is not None:
            await hook()
        await super().replace(name, content, seen=seen)
        hook, self.after = self.after, None
        if hook is not None:
            await hook()


def peer_issued_at(date: int) -> Peer:
    return Peer(AGENT, "a", date - BACKDATED.total_seconds())


def test_renewal_that_is_overtaken_by_the_removal_gets_nothing(tmp_path: Path) -> None:
    vault = HookedVault(tmp_path)
    denials, other = finish(open_denials(vault)), finish(open_denials(FilesVault(tmp_path)))
    peer = peer_issued_at(finish(denials.record_issue(AGENT, "a", NOW)))
    vault.before = lambda: other.deny(AGENT, "a", NOW + 5)
    with pytest.raises(CertificateDenied):
        finish(denials.record_issue(AGENT, "a", NOW + 6, renewed=peer))
    finish(denials.reload())
    assert denials.is_denied(peer)
    assert denials.observe_issued(AGENT) == {}
    joined = finish(denials.record_issue(AGENT, "a", NOW + 6))
    assert finish(denials.record_issue(AGENT, "a", NOW + 7, renewed=peer_issued_at(joined))) == NOW + 7


def test_admission_says_that_the_certificate_was_refused_meanwhile(tmp_path: Path) -> None:
    vault, joined = HookedVault(tmp_path), int(time.time()) - 60
    denials, other = finish(open_denials(vault)), finish(open_denials(FilesVault(tmp_path)))
    peer = peer_issued_at(finish(denials.record_issue(AGENT, "a", joined)))
    admission = Admission(trust_in(tmp_path, joined), tokens_in(tmp_path), denials, None, lambda gateway: True)
    vault.before = lambda: other.deny(AGENT, "a", joined + 5)
    key = ec.generate_private_key(ec.SECP256R1())
    request = CertificateSigningRequestBuilder(Name([])).sign(key, hashes.SHA256())
    text = request.public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(ApiError) as refused:
        finish(admission.renew(peer, JoinRequest(role=AGENT, name="a", signing_request=text)))
    assert (refused.value.status, refused.value.reason) == (403, ApiReason.CERTIFICATE_DENIED)


async def deny_while_another_change_is_written(vault: HookedVault, denials: Denials) -> None:
    written, returns = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        written.set()
        await returns.wait()

    vault.after = hold
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(denials.record_issue(AGENT, "b", NOW))
        await written.wait()
        group.create_task(denials.deny(AGENT, "a", NOW + 1))
        for _ in range(10):
            await asyncio.sleep(0)
        returns.set()


def test_removal_stays_in_force_when_an_earlier_change_comes_back_later(tmp_path: Path) -> None:
    vault = HookedVault(tmp_path)
    denials = finish(open_denials(vault))
    peer = peer_issued_at(finish(denials.record_issue(AGENT, "a", NOW)))
    asyncio.run(deny_while_another_change_is_written(vault, denials))
    assert denials.is_denied(peer)
    assert set(denials.observe_issued(AGENT)) == {"b"}
