"""`https://` and `hf://` sources over real sockets: a server and a hub with everything that goes wrong there."""

import asyncio
import hashlib
import json
import logging
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from covey_agent.artifacts.body import Remote
from covey_agent.artifacts.hub import HubSettings, observe_hub_settings
from covey_agent.artifacts.index import IndexSettings
from covey_agent.artifacts.web import Patience
from covey_agent.ports import AgentError
from covey_api.model import Geometry, ResolvedArtifact
from covey_api.reasons import FailureCause
from kit.artifact_rig import IMPATIENT, QUICK, Rig, ignore, rig_on
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape, build_model, build_set
from kit.hub import Hub, running_hub
from kit.index import PackageIndex, running_index

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
NAME = "weights-q4.gguf"
REPO = "org/model"


@pytest.fixture(scope="module")
def weights() -> bytes:
    """A GGUF file of 4 MiB."""
    made = build_model(Shape(embedding=512, feed_forward=1024, vocabulary=2000, layers=1))
    return made.header + random.Random(5).randbytes(made.file_bytes - len(made.header))


@pytest.fixture
def server() -> Generator[PackageIndex]:
    with running_index() as running:
        yield running


@pytest.fixture
def hub() -> Generator[Hub]:
    with running_hub() as running:
        yield running


@dataclass(frozen=True, slots=True)
class Site:
    """Where a scenario's rig lies, and which hub it knows."""

    folder: Path
    settings: HubSettings
    patience: Patience = QUICK

    def run(self, scenario: Callable[[Rig], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with rig_on(
                self.folder, IndexSettings(url="http://127.0.0.1:1"), self.patience, self.settings
            ) as rig:
                await scenario(rig)

        asyncio.run(whole())

    def resolve(self, source: str, sha256: str = "") -> tuple[ResolvedArtifact, Geometry]:
        found: list[tuple[ResolvedArtifact, Geometry]] = []

        async def scenario(rig: Rig) -> None:
            found.append(await rig.artifacts.read_header(source, sha256))

        self.run(scenario)
        return found[0]

    def pull(self, source: str, sha256: str = "") -> Path:
        found: list[Path] = []

        async def scenario(rig: Rig) -> None:
            artifact, _ = await rig.artifacts.read_header(source, sha256)
            found.append(await rig.artifacts.fetch(artifact, ignore))
            assert artifact.digest in rig.artifacts.digests()

        self.run(scenario)
        return found[0]

    def refuses(self, source: str, words: str, cause: FailureCause, sha256: str = "") -> str:
        with pytest.raises(AgentError, match=words) as raised:
            self.pull(source, sha256)
        assert raised.value.cause is cause
        return raised.value.message


@pytest.fixture
def site(tmp_path: Path, hub: Hub) -> Site:
    return Site(tmp_path / "cache", HubSettings(hub.base))


def publish(server: PackageIndex, content: bytes, name: str = NAME) -> tuple[str, str]:
    """URL and sha256."""
    digest = server.add(name, content)
    return f"{server.base}/files/{name.partition('-')[0]}/{name}", digest


# https://


def test_a_file_at_an_address_is_fetched_against_the_models_digest(
    site: Site, server: PackageIndex, weights: bytes
) -> None:
    url, digest = publish(server, weights)
    artifact, geometry = site.resolve(url, digest)
    assert (artifact.name, artifact.size_bytes, artifact.digest) == (NAME, len(weights), digest)
    assert geometry.embedding_length == 512
    assert server.state.sent_bytes < 2 * MIB
    assert site.pull(url, digest).read_bytes() == weights
    server.state.requests.clear()
    assert site.pull(url, digest).name == digest
    assert server.state.requests == [], "what is here must need no network"


def test_without_a_digest_a_header_is_read_and_nothing_fetched(
    site: Site, server: PackageIndex, weights: bytes
) -> None:
    url, _ = publish(server, weights)
    assert site.resolve(url)[1].embedding_length == 512
    site.refuses(url, "has no sha256 that it can be verified with", FailureCause.ARTIFACT_CORRUPT)


def test_another_content_than_the_models_digest_is_never_installed(
    site: Site, server: PackageIndex, weights: bytes
) -> None:
    url, _ = publish(server, weights)
    site.refuses(url, "must have sha256 0000", FailureCause.ARTIFACT_CORRUPT, "0" * 64)
    assert list((site.folder / "blobs" / "sha256").iterdir()) == []
    assert list((site.folder / "partial").iterdir()) == []


def test_a_server_without_ranges_gives_header_and_file(site: Site, server: PackageIndex, weights: bytes) -> None:
    server.faults.no_ranges = True
    url, digest = publish(server, weights)
    assert site.pull(url, digest).read_bytes() == weights


def test_a_broken_connection_a_busy_server_and_silence_are_survived(
    site: Site, server: PackageIndex, weights: bytes
) -> None:
    url, digest = publish(server, weights)
    faults = server.faults
    faults.reset_after_bytes, faults.resets, faults.busy, faults.retry_after = 1500 * 1024, 1, 1, "1"
    faults.stall_after_bytes, faults.stalls = 1200 * 1024, 1
    assert replace(site, patience=IMPATIENT).pull(url, digest).read_bytes() == weights
    resumed = [seen.headers["Range"] for seen in server.requests_for(NAME) if "If-Range" in seen.headers]
    first, second = (int(span.removeprefix("bytes=").rstrip("-")) for span in resumed)
    # A reset throws away what the kernel still held.
    assert 0 < first < second


def test_downloads_keep_within_what_they_may_take_together(site: Site, server: PackageIndex, weights: bytes) -> None:
    """Two at once, at a rate at which one alone takes more than a second."""
    sources = [publish(server, weights + ending, f"{name}-1.gguf") for name, ending in (("a", b"1"), ("b", b"2"))]

    async def scenario(rig: Rig) -> None:
        remotes = [Remote(url, url[-8:], digest, len(weights) + 1) for url, digest in sources]
        rig.web.pace.limit(3 * MIB)
        began = time.monotonic()
        await asyncio.gather(*(rig.downloader.download(remote, ignore) for remote in remotes))
        assert time.monotonic() - began > 2 * len(weights) / (3 * MIB) - 0.2
        rig.web.pace.limit(None)

    site.run(scenario)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/files/none/none.gguf", "answers 404: there is no such file. Change the source"),
        ("/files/page/page-1.html", "it is an HTML page"),
        ("/files/model/model-00001-of-00003.gguf", "is one of 3 files of a model"),
        ("/files/empty/empty-1.gguf", "does not tell its size"),
    ],
)
def test_an_address_that_leads_nowhere_says_why(site: Site, server: PackageIndex, path: str, words: str) -> None:
    publish(server, b"<!DOCTYPE html><html>log in</html>", "page-1.html")
    publish(server, b"", "empty-1.gguf")
    with pytest.raises(AgentError, match=words):
        site.pull(server.base + path, "0" * 64)


def test_a_file_that_changed_since_its_header_was_read_is_refused(
    site: Site, server: PackageIndex, weights: bytes
) -> None:
    url, digest = publish(server, weights)
    artifact, _ = site.resolve(url, digest)
    publish(server, weights + b"more")

    async def scenario(rig: Rig) -> None:
        with pytest.raises(AgentError, match=f"must have {len(weights)} bytes.* the server sends {len(weights) + 4}"):
            await rig.artifacts.fetch(artifact, ignore)

    site.run(scenario)


# hf://


def test_a_file_of_a_repository_is_resolved_to_a_commit_once(site: Site, hub: Hub, weights: bytes) -> None:
    commit = hub.push(REPO, {NAME: weights, "other.gguf": b"x" * 9999, "README.md": b"words"})
    artifact, geometry = site.resolve(f"hf://{REPO}#{NAME}")
    assert (artifact.revision, artifact.name) == (commit, NAME)
    assert artifact.digest == hashlib.sha256(weights).hexdigest()
    assert geometry.embedding_length == 512
    assert hub.store.state.sent_bytes < 2 * MIB
    hub.push(REPO, {NAME: weights[:-1] + b"!"})

    async def scenario(rig: Rig) -> None:
        assert (await rig.artifacts.fetch(artifact, ignore)).read_bytes() == weights

    site.run(scenario)
    asked = [seen for seen in hub.store.state.requests if "other" in seen.path]
    assert asked == [], "only the files that are needed are fetched"


def test_a_branch_that_moved_is_resolved_anew_and_what_is_here_serves_while_the_hub_is_away(
    site: Site, hub: Hub, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    first = hub.push(REPO, {NAME: weights})
    site.pull(f"hf://{REPO}#{NAME}")
    second = hub.push(REPO, {NAME: weights[:-1] + b"!"})
    assert site.resolve(f"hf://{REPO}#{NAME}")[0].revision == second != first
    away = Site(site.folder, HubSettings("http://127.0.0.1:1"))
    assert away.resolve(f"hf://{REPO}#{NAME}")[0].revision == first
    assert f"Taking commit {first} of it" in caplog.text


def test_a_commit_needs_no_hub_once_it_is_here(site: Site, hub: Hub, weights: bytes) -> None:
    commit = hub.push(REPO, {NAME: weights})
    site.pull(f"hf://{REPO}@{commit}#{NAME}")
    hub.state.requests.clear()
    site.pull(f"hf://{REPO}@{commit}#{NAME}")
    assert hub.state.requests == []


def test_a_token_is_shown_to_the_hub_and_to_nobody_else(
    tmp_path: Path, hub: Hub, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.push(REPO, {NAME: weights, "config.json": b"{}"})
    hub.hub.token = "hf_secretsecret"
    (tmp_path / "token").write_text("hf_secretsecret\n")
    settings = observe_hub_settings({"HF_ENDPOINT": hub.base, "HF_TOKEN_PATH": str(tmp_path / "token")}, tmp_path)
    Site(tmp_path / "cache", settings).pull(f"hf://{REPO}#{NAME}")
    assert {seen.headers.get("Authorization") for seen in hub.state.requests} == {"Bearer hf_secretsecret"}
    assert all("Authorization" not in seen.headers for seen in hub.store.state.requests)
    assert len(hub.store.state.requests) > 1
    assert "secret" not in caplog.text + repr(settings) + repr(settings.origin)
    kept = [path.read_bytes() for path in (tmp_path / "cache").rglob("*.json")]
    assert all(b"secret" not in content for content in kept)


def test_a_missing_token_and_terms_that_were_not_accepted_are_said(site: Site, hub: Hub, weights: bytes) -> None:
    hub.push(REPO, {NAME: weights})
    hub.hub.token = "hf_other"
    source = f"hf://{REPO}#{NAME}"
    site.refuses(source, r"answers 401 \(RepoNotFound\).* HF_TOKEN", FailureCause.ARTIFACT_UNAVAILABLE)
    hub.hub.token, hub.hub.gated = "", True
    site.refuses(source, r"answers 403 \(GatedRepo\).* terms to be accepted", FailureCause.ARTIFACT_UNAVAILABLE)


def test_an_address_that_expires_in_mid_download_is_signed_again(site: Site, hub: Hub, weights: bytes) -> None:
    hub.push(REPO, {NAME: weights})
    artifact, _ = site.resolve(f"hf://{REPO}#{NAME}")
    hub.store.faults.reset_after_bytes, hub.store.faults.resets = 2 * MIB, 1
    hub.hub.uses, before = 1, hub.hub.signed

    async def scenario(rig: Rig) -> None:
        assert (await rig.artifacts.fetch(artifact, ignore)).read_bytes() == weights

    site.run(scenario)
    assert hub.hub.signed - before == 2
    hub.hub.uses = 0
    shutil.rmtree(site.folder)
    words = "to which it was redirected, answers 403"
    said = site.refuses(f"hf://{REPO}#{NAME}", words, FailureCause.ARTIFACT_UNAVAILABLE)
    assert "secret" not in said


def test_a_busy_hub_is_waited_for(site: Site, hub: Hub, weights: bytes) -> None:
    hub.push(REPO, {NAME: weights})
    hub.faults.busy, hub.faults.retry_after = 2, "0"
    site.pull(f"hf://{REPO}#{NAME}")


def checkpoint(tmp_path: Path) -> dict[str, bytes]:
    """The files of a repository with a checkpoint in two files, and much that no engine loads."""
    folder = tmp_path / "made"
    folder.mkdir()
    build_checkpoint(Shape(), files=2).write(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    more = {"tokenizer.json": b"{}" * 5000, "consolidated.safetensors": b"x" * 9999, "original/params.json": b"{}"}
    return files | more | {"pytorch_model.bin": b"x" * 9999, "README.md": b"words", ".gitattributes": b""}


def test_a_checkpoint_is_a_folder_of_what_an_engine_loads(site: Site, hub: Hub, tmp_path: Path) -> None:
    files = checkpoint(tmp_path)
    hub.push(REPO, files)
    artifact, geometry = site.resolve(f"hf://{REPO}")
    names = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert [file.name for file in artifact.files] == names
    assert artifact.name == "model"
    assert geometry.weights_bytes > 0
    folder = site.pull(f"hf://{REPO}")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: files[name] for name in names}
    listed = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in names)
    assert folder.name == artifact.digest == hashlib.sha256(listed.encode()).hexdigest()
    # No byte is on the disk twice.
    assert all(path.stat().st_nlink == 2 for path in folder.iterdir())


def test_a_small_file_that_is_not_what_the_hub_says_is_refused(site: Site, hub: Hub, tmp_path: Path) -> None:
    hub.push(REPO, checkpoint(tmp_path))
    hub.hub.wrong_blob_id = "config.json"
    site.refuses(f"hf://{REPO}", "'config.json' of 'org/model' must have hash 0000", FailureCause.ARTIFACT_CORRUPT)


def test_a_large_file_that_is_not_what_the_hub_says_is_refused(site: Site, hub: Hub, weights: bytes) -> None:
    hub.push(REPO, {NAME: weights})
    hub.store.faults.body = weights[:-1] + b"!"
    site.refuses(f"hf://{REPO}#{NAME}", "must have sha256 .*, as the hub says", FailureCause.ARTIFACT_CORRUPT)
    assert list((site.folder / "blobs" / "sha256").iterdir()) == []


def split(count: int = 3) -> dict[str, bytes]:
    shards = build_set(Shape(), count)
    return {
        f"Q4/m-{number:05}-of-{count:05}.gguf": shard.header + bytes(shard.file_bytes - len(shard.header))
        for number, shard in enumerate(shards, 1)
    }


def test_a_split_model_is_one_set_by_the_name_of_any_of_its_files(site: Site, hub: Hub) -> None:
    files = split()
    hub.push(REPO, files | {"Q8/m.gguf": b"x" * 9999})
    artifact, _ = site.resolve(f"hf://{REPO}#Q4/m-00002-of-00003.gguf")
    assert [f"Q4/{file.name}" for file in artifact.files] == list(files)
    first = site.pull(f"hf://{REPO}#Q4/m-00002-of-00003.gguf")
    assert first.name == "m-00001-of-00003.gguf"
    assert {f"Q4/{path.name}": path.read_bytes() for path in first.parent.iterdir()} == files


def test_a_split_model_that_lacks_a_file_is_refused_by_its_name(site: Site, hub: Hub) -> None:
    files = split()
    del files["Q4/m-00003-of-00003.gguf"]
    hub.push(REPO, files)
    words = r"lacks 1 of the 3 files of the model: 'Q4/m-00003-of-00003\.gguf'"
    site.refuses(f"hf://{REPO}#Q4/m-00001-of-00003.gguf", words, FailureCause.ARTIFACT_UNAVAILABLE)


def test_one_gguf_model_alone_needs_no_name_and_several_are_listed(site: Site, hub: Hub, weights: bytes) -> None:
    hub.push(REPO, {"only.gguf": weights})
    assert site.resolve(f"hf://{REPO}")[0].name == "only.gguf"
    hub.push(REPO, {"a/deep.gguf": weights + b"deep"})
    site.refuses(f"hf://{REPO}", "Choose one .*: 'a/deep.gguf'", FailureCause.ARTIFACT_UNAVAILABLE)
    assert site.pull(f"hf://{REPO}#a/deep.gguf").read_bytes() == weights + b"deep"
    hub.push(REPO, {"q4.gguf": weights, "q8.gguf": weights})
    site.refuses(f"hf://{REPO}", "Choose one .*: 'q4.gguf', 'q8.gguf'", FailureCause.ARTIFACT_UNAVAILABLE)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf://org/none", r"answers 404: there is no such repository, revision or file"),
        ("hf://org/model@v9", r"answers 404: there is no such repository, revision or file"),
        ("hf://org/model#q5.gguf", r"lacks 'q5.gguf'. It has: 'q4.gguf'"),
        ("hf://org/model#config.json", "must name a GGUF file"),
    ],
)
def test_a_repository_without_what_is_asked_for_says_what_it_has(
    site: Site, hub: Hub, weights: bytes, source: str, words: str
) -> None:
    hub.push(REPO, {"q4.gguf": weights})
    site.refuses(source, words, FailureCause.ARTIFACT_UNAVAILABLE)


def test_what_is_no_hub_is_said(tmp_path: Path, server: PackageIndex) -> None:
    server.faults.page = ("application/json", json.dumps({"sha": "x"}))
    # An index answers whatever page is asked for.
    site = Site(tmp_path / "cache", HubSettings(server.base))
    site.refuses("hf://org/model", "there is no such repository", FailureCause.ARTIFACT_UNAVAILABLE)


def test_a_demanded_digest_is_held_against_the_hubs(site: Site, hub: Hub, weights: bytes) -> None:
    hub.push(REPO, {NAME: weights})
    site.refuses(f"hf://{REPO}#{NAME}", "must have sha256 0000.*; the hub has", FailureCause.ARTIFACT_CORRUPT, "0" * 64)
