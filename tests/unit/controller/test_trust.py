"""The authority of a fleet: made once though many make it, kept from old folders, replaced step by step."""

import asyncio
import itertools
import shutil
import stat
import time
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole
from covey_controller.authority import BACKDATED, Authority, parse_authority
from covey_controller.credentials import open_credentials
from covey_controller.ports import Conflict
from covey_controller.serving.protocol import Peer
from covey_controller.stores.files.vault import FilesVault
from covey_controller.trust import RotationStep, Trust, ensure_authority, ensure_fleet_secret
from covey_controller.vault import AUTHORITY_CERTIFICATES, AUTHORITY_KEYS, DENIALS, FLEET_SECRET
from cryptography.hazmat.primitives.asymmetric import ec
from kit.vaults import authority_in, denials_in, finish, fleet_secret_in, tokens_in, trust_in

NOW = time.time()
OLD_FOLDER = Path(__file__).parents[2] / "golden" / "files" / "controller-folder"


class OvertakenVault:
    """A vault in which another replica is faster, once for each document named: it writes just before."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._vault = FilesVault(folder)
        self._other = folder
        self._names = list(names)

    async def read(self, name: str) -> bytes | None:
        return await self._vault.read(name)

    async def replace(self, name: str, content: bytes, *, seen: bytes | None) -> None:
        if name in self._names:
            self._names.remove(name)
            authority_in(self._other, NOW)
            fleet_secret_in(self._other)
        await self._vault.replace(name, content, seen=seen)


def is_trusted(authority: Authority, issuer: Authority) -> bool:
    """Whether a certificate that the issuer signs now verifies by the authority's bundle."""
    return issuer.certificate in authority.bundle


def test_vault_replaces_only_what_was_seen(tmp_path: Path) -> None:
    vault = FilesVault(tmp_path / "v")
    finish(vault.replace("a", b"1", seen=None))
    for seen in (None, b"2"):
        with pytest.raises(Conflict):
            finish(vault.replace("a", b"3", seen=seen))
    finish(vault.replace("a", b"2", seen=b"1"))
    assert finish(vault.read("a")) == b"2"
    assert finish(vault.read("b")) is None
    assert stat.S_IMODE((tmp_path / "v" / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("names", [(AUTHORITY_KEYS,), (AUTHORITY_CERTIFICATES,)], ids=["at the key", "at the end"])
def test_replica_that_is_overtaken_while_it_makes_the_authority_uses_the_other_ones(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    made = finish(ensure_authority(OvertakenVault(tmp_path, *names), NOW))
    assert made.bundle == authority_in(tmp_path, NOW).bundle
    assert made.key.public_key() == made.certificate.public_key()


def test_replica_that_is_overtaken_while_it_makes_the_fleet_secret_uses_the_other_ones(tmp_path: Path) -> None:
    assert finish(ensure_fleet_secret(OvertakenVault(tmp_path, FLEET_SECRET))) == fleet_secret_in(tmp_path)


def test_authority_is_replaced_in_three_steps_in_each_of_which_the_members_of_the_last_are_trusted(
    tmp_path: Path,
) -> None:
    trust = trust_in(tmp_path, NOW)
    standby = trust_in(tmp_path, NOW)
    states = [trust.current]
    for expected in (RotationStep.ANNOUNCED, RotationStep.SIGNING, RotationStep.FINISHED):
        assert finish(trust.rotate(NOW)) is expected
        states.append(trust.current)
        assert authority_in(tmp_path, NOW).bundle == trust.current.bundle
    for before, after in itertools.pairwise(states):
        assert is_trusted(before, after), "members of the step before must verify the controller"
        assert is_trusted(after, before), "the controller must verify members of the step before"
    first, announced, _, finished = states
    assert announced.digest == first.digest != finished.digest
    assert not is_trusted(finished, first)
    finish(standby.reload())
    assert standby.current.bundle == finished.bundle
    assert len(finished.keys) == 1
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    assert finished.issue_client(key, CertificateRole.AGENT, "a", NOW)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("written", [AUTHORITY_KEYS, AUTHORITY_CERTIFICATES])
def test_rotation_that_dies_between_its_two_writes_leaves_an_authority_that_goes_on(
    tmp_path: Path, step: int, written: str
) -> None:
    trust = trust_in(tmp_path / "a", NOW)
    for _ in range(step):
        finish(trust.rotate(NOW))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    finish(trust.rotate(NOW))
    order = (AUTHORITY_CERTIFICATES, AUTHORITY_KEYS) if step == 2 else (AUTHORITY_KEYS, AUTHORITY_CERTIFICATES)
    for name in order[: order.index(written) + 1]:
        shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    again = trust_in(tmp_path / "b", NOW)
    seen: list[RotationStep] = []
    while not seen or seen[-1] is not RotationStep.FINISHED:
        seen.append(finish(again.rotate(NOW)))
    assert len(seen) <= 3
    assert len(again.current.bundle) == len(again.current.keys) == 1


def test_vault_that_was_emptied_gets_back_what_is_in_force(tmp_path: Path) -> None:
    vault = FilesVault(tmp_path / "v")
    before = finish(open_credentials(vault))
    finish(before.trust.rotate(NOW))
    finish(before.deny_agent("a"))
    documents = {path.name: path.read_bytes() for path in (tmp_path / "v").iterdir()}
    assert {AUTHORITY_KEYS, AUTHORITY_CERTIFICATES, FLEET_SECRET, DENIALS} <= documents.keys()
    for name in documents:
        (tmp_path / "v" / name).unlink()
    finish(before.reload())
    after = finish(open_credentials(FilesVault(tmp_path / "v")))
    assert after.fleet_id == before.fleet_id
    assert after.trust.current.bundle == before.trust.current.bundle
    assert {name: (tmp_path / "v" / name).read_bytes() for name in documents} == documents


def test_who_waits_for_a_change_hears_of_it_and_of_nothing_else(tmp_path: Path) -> None:
    async def story(trust: Trust) -> None:
        waiting = asyncio.ensure_future(trust.wait_changed())
        await trust.reload()
        await asyncio.sleep(0)
        assert not waiting.done()
        await trust.rotate(NOW)
        await waiting

    asyncio.run(story(trust_in(tmp_path, NOW)))


def test_state_folder_of_an_older_controller_keeps_working_and_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "controller"
    shutil.copytree(OLD_FOLDER, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"authority.key", "authority.pem", "denials.json", "fleet.secret", "tokens.json"}
    credentials = finish(open_credentials(FilesVault(folder)))
    certificates, keys = before["authority.pem"], before["authority.key"]
    assert credentials.trust.current.bundle == parse_authority(certificates, keys).bundle
    assert credentials.fleet_secret.hex() == before["fleet.secret"].decode()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    token = (Path(str(OLD_FOLDER) + ".token")).read_text().strip()
    finish(tokens_in(folder).redeem(token, CertificateRole.AGENT, 1_000_000.0))
    assert denials_in(folder).is_denied(Peer(CertificateRole.AGENT, "gone", 1_000_000 - BACKDATED.total_seconds()))
