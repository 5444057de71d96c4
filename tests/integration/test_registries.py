"""`oci://` sources from a real registry: what ORAS puts there, by tag and digest, with logins and tokens."""

import asyncio
import base64
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from covey_agent.artifacts import parts
from covey_agent.artifacts.index import IndexSettings
from covey_agent.ports import AgentError
from covey_api.model import ResolvedArtifact
from kit.artifact_rig import ignore, rig_on
from kit.checkpoints import build_checkpoint
from kit.gguf import Shape, build_model
from kit.registry import PASSWORD, USER, Registry, running_door, running_registry, title

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SHAPE = Shape(embedding=64, feed_forward=128, vocabulary=300, layers=1)


@pytest.fixture(scope="module")
def weights() -> bytes:
    made = build_model(SHAPE)
    return made.header + random.Random(7).randbytes(made.file_bytes - len(made.header))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whose logins are used."""
    for name in ("REGISTRY_AUTH_FILE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def log_in(home: Path, registry: Registry) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (home / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))


def pull(folder: Path, source: str, netrc: Path | None = None) -> tuple[ResolvedArtifact, Path]:
    async def whole() -> tuple[ResolvedArtifact, Path]:
        async with rig_on(folder, IndexSettings("http://127.0.0.1:1/simple", netrc=netrc)) as rig:
            artifact, geometry = await rig.artifacts.read_header(source, "")
            assert geometry.layer_count == SHAPE.layers
            return artifact, await rig.artifacts.fetch(artifact, ignore)

    return asyncio.run(whole())


def test_a_file_comes_by_tag_and_stays_that_of_the_manifest_when_the_tag_moves(
    tmp_path: Path, home: Path, registry: Registry, weights: bytes
) -> None:
    log_in(home, registry)
    layers = [(weights, title("weights.gguf")), (b"# read me", title("README.md"))]
    digest = registry.push("models/small", "v1", layers)
    source = f"oci://{registry.host}/models/small:v1"
    artifact, path = pull(tmp_path / "cache", source)
    assert path.read_bytes() == weights
    assert (artifact.name, artifact.revision) == ("weights.gguf", digest)
    assert artifact.sha256 == hashlib.sha256(weights).hexdigest()
    registry.push("models/small", "v1", [(b"GGUF", title("weights.gguf"))])

    async def fetch_again() -> Path:
        async with rig_on(tmp_path / "other", IndexSettings("http://127.0.0.1:1/simple")) as rig:
            return await rig.artifacts.fetch(artifact, ignore)

    assert asyncio.run(fetch_again()).read_bytes() == weights
    by_digest = f"oci://{registry.host}/models/small@sha256:{digest}#weights.gguf"
    assert pull(tmp_path / "third", by_digest)[1].read_bytes() == weights


def test_a_checkpoint_is_a_folder_of_layers(tmp_path: Path, home: Path, registry: Registry) -> None:
    log_in(home, registry)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    build_checkpoint(SHAPE).write(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    registry.push("models/folder", "latest", [(content, title(name)) for name, content in files.items()])
    _, path = pull(tmp_path / "cache", f"oci://{registry.host}/models/folder")
    assert {each.name: each.read_bytes() for each in path.iterdir()} == files


def test_layers_of_other_tools_are_known_by_their_type_or_path(
    tmp_path: Path, home: Path, registry: Registry, weights: bytes
) -> None:
    log_in(home, registry)
    kinds: dict[str, dict[str, object]] = {
        "docker": {"mediaType": "application/vnd.docker.ai.gguf.v3"},
        "ollama": {"mediaType": "application/vnd.ollama.image.model"},
        "modelpack": {
            "mediaType": "application/vnd.cncf.model.weight.v1.raw",
            "annotations": {"org.cncf.model.filepath": "weights.gguf"},
        },
    }
    for tag, described in kinds.items():
        registry.push("models/tools", tag, [(weights, described), (b"licence", {"mediaType": "text/plain"})])
        assert pull(tmp_path / tag, f"oci://{registry.host}/models/tools:{tag}")[1].read_bytes() == weights


def test_a_registry_of_tokens_gets_the_login_where_it_is_and_nowhere_else(
    tmp_path: Path, home: Path, registry: Registry, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    registry.push("models/token", "latest", [(weights, title("weights.gguf"))])
    with running_door(registry) as door:
        source = f"oci://{door.registry.host}/models/token"
        with pytest.raises(
            AgentError, match=r"answers 401: credentials are missing or refused.*docker login"
        ) as raised:
            pull(tmp_path / "cache", source)
        log_in(home, door.registry)
        assert pull(tmp_path / "cache", source)[1].read_bytes() == weights
        door.state.logins.clear()
        # The same machine by another name: for all that is known, somebody else's.
        door.state.realm = door.state.realm.replace("127.0.0.1", "localhost")
        with pytest.raises(AgentError, match="answers 401"):
            pull(tmp_path / "elsewhere", source)
        assert door.state.logins == [""]
    assert "is not shown to 'http://localhost" in caplog.text
    assert PASSWORD not in caplog.text + raised.value.message
    assert "one.time" not in caplog.text


def test_a_token_that_runs_out_before_a_set_is_whole_is_made_anew(
    tmp_path: Path, home: Path, registry: Registry
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    build_checkpoint(SHAPE).write(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "tokenizer.json": b"{}",
        "vocab.json": b"{ }",
    }
    registry.push("models/runs-out", "latest", [(content, title(name)) for name, content in files.items()])
    with running_door(registry) as door:
        log_in(home, door.registry)
        artifact, path = pull(tmp_path / "cache", f"oci://{door.registry.host}/models/runs-out")
        assert {each.name: each.read_bytes() for each in path.iterdir()} == files
        before, door.state.token_uses = door.state.tokens, 3  # the manifest, and two files

        async def fetch_elsewhere() -> Path:
            async with rig_on(tmp_path / "other", IndexSettings("http://127.0.0.1:1/simple")) as rig:
                return await rig.artifacts.fetch(artifact, ignore)

        again = asyncio.run(fetch_elsewhere())
        assert {each.name: each.read_bytes() for each in again.iterdir()} == files
        assert door.state.tokens - before == len(files) / 2


def test_a_file_by_parts_outlasts_several_tokens(
    tmp_path: Path, home: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_bytes = 256 * 1024
    monkeypatch.setattr(parts, "LEAST_PART_BYTES", part_bytes)
    monkeypatch.setattr(parts, "SPLIT_BYTES", part_bytes)
    content = random.Random(11).randbytes(6 * part_bytes)
    digest = registry.push("models/parts", "latest", [(content, title("weights.gguf"))])
    with running_door(registry) as door:
        log_in(home, door.registry)
        door.state.token_uses = 3  # the manifest, and two parts
        artifact = ResolvedArtifact(
            source=f"oci://{door.registry.host}/models/parts",
            name="weights.gguf",
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            revision=digest,
        )

        async def fetch(folder: Path) -> Path:
            async with rig_on(folder, IndexSettings("http://127.0.0.1:1/simple")) as rig:
                return await rig.artifacts.fetch(artifact, ignore)

        assert asyncio.run(fetch(tmp_path / "cache")).read_bytes() == content
        assert door.state.tokens == 3
        door.state.token_uses = 1  # the manifest alone
        with pytest.raises(AgentError, match="answers 401"):
            asyncio.run(fetch(tmp_path / "other"))
        assert door.state.tokens == 5


def test_a_token_is_made_with_nobody_elses_login(
    tmp_path: Path, home: Path, registry: Registry, weights: bytes
) -> None:
    """A registry gets the token: were another host's login shown there, it would be a stranger's token."""
    registry.push("models/netrc", "latest", [(weights, title("weights.gguf"))])
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine localhost login {USER} password {PASSWORD}\n")
    with running_door(registry) as door, running_door(registry) as other:
        source = f"oci://{door.registry.host}/models/netrc"
        at_other = other.state.realm.replace("127.0.0.1", "localhost")
        door.state.realm = at_other
        with pytest.raises(AgentError, match="answers 401"):
            pull(tmp_path / "named", source, netrc)
        # The realm is the registry's own, and leads there.
        door.state.realm = f"http://{door.registry.host}/away?to={at_other}"
        log_in(home, door.registry)
        with pytest.raises(AgentError, match="answers 401"):
            pull(tmp_path / "redirected", source, netrc)
        assert set(other.state.logins) == {""}
        for realm, words in (
            (
                "http://registry.example/token",
                "only if the registry is; its scheme is 'http'",
            ),
            ("ftp://127.0.0.1/token", "its scheme is 'ftp'"),
            ("https://[", "can't be read as one"),
        ):
            door.state.realm = realm
            with pytest.raises(AgentError, match=words):
                pull(tmp_path / "plain", source)


def test_a_login_of_the_registry_goes_before_one_of_its_host_which_is_shown_to_who_asks_for_one(
    tmp_path: Path, home: Path, registry: Registry, weights: bytes
) -> None:
    registry.push("models/netrc", "latest", [(weights, title("weights.gguf"))])
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login git password of-another-service\n")
    with running_door(registry) as door:
        source = f"oci://{door.registry.host}/models/netrc"
        log_in(home, door.registry)
        assert pull(tmp_path / "docker", source, netrc)[1].read_bytes() == weights
        assert door.state.shown == {"", "Bearer"}
        assert len(set(door.state.logins)) == 1
        (home / "config.json").unlink()
        netrc.write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
        for cache, each in (("token", source), ("basic", f"oci://{registry.host}/models/netrc")):
            assert pull(tmp_path / cache, each, netrc)[1].read_bytes() == weights
        assert door.state.shown == {"", "Bearer"}
        # Who logged in by Docker Desktop has no login in its file.
        (home / "config.json").write_text(json.dumps({"auths": {door.registry.host: {}}, "credsStore": "desktop"}))
        with pytest.raises(AgentError, match=r"kept by `docker-credential-desktop` there, which the agent doesn't ask"):
            pull(tmp_path / "helper", source)


def test_what_is_not_there_is_said(tmp_path: Path, home: Path, registry: Registry, weights: bytes) -> None:
    source = f"oci://{registry.host}/models/said"
    registry.push("models/said", "two", [(weights, title("a.gguf")), (weights + b"x", title("b.gguf"))])
    registry.push("models/said", "packed", [(weights, title("a.tgz") | {"mediaType": "x/y+gzip"})])
    with pytest.raises(AgentError, match=f"answers 401: .*`docker login {registry.host}`"):
        pull(tmp_path / "cache", f"{source}:two")
    log_in(home, registry)
    for reference, words in (
        (":none", "there is no such repository, tag or file"),
        (":two", "Choose one with '#FILE' in the source: 'a.gguf', 'b.gguf'"),
        (":two#c.gguf", r"at manifest [0-9a-f]{64} lacks 'c.gguf'"),
        (":packed", "has neither a GGUF file nor 'config.json'. Left out, .*: 'a.tgz' of type 'x/y\\+gzip'"),
    ):
        with pytest.raises(AgentError, match=words):
            pull(tmp_path / "cache", source + reference)
