"""Models that demand a signature, engines' files with a provenance: real signatures, by the tools that make them."""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from covey_agent.artifacts.hub import HubSettings
from covey_agent.artifacts.index import IndexSettings
from covey_agent.engines.environments import Environment, PinnedFile, Recipe
from covey_agent.engines.recipes import signatures_recipe
from covey_agent.ports import AgentError
from covey_agent.trust.provenance import IndexProvenances
from covey_agent.trust.signatures import SignatureFiles, SignedArtifacts
from covey_agent.trust.verifier import Verifier
from covey_api.model import ArtifactFile, ResolvedArtifact
from covey_api.reasons import FailureCause
from covey_api.trust import SignedBy, Signer, SigstoreIdentity
from kit.artifact_rig import Rig, ignore, rig_on
from kit.cache import shared_cache
from kit.fleet import running_fleet, wait_until
from kit.hub import running_hub
from kit.index import running_index
from kit.real import provide_real_parts
from kit.signing import (
    ATTESTED,
    ATTESTED_SHA256,
    IDENTITY,
    ISSUER,
    WHEEL,
    SigningKey,
    make_key,
    provide_attested,
    provide_packages,
    render_bundle,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def packages() -> Path:
    return provide_packages()


@pytest.fixture(scope="module")
def key(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return make_key(packages, tmp_path_factory.mktemp("keys") / "one")


@pytest.fixture(scope="module")
def attested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provide_attested(tmp_path_factory.mktemp("attested"))


def verifier_on(rig: Rig) -> Verifier:
    """Its libraries come from the tests' shared cache, where `packages` put them."""
    recipe = signatures_recipe()
    assert recipe is not None
    environment = Environment(recipe, rig.web, rig.cache, rig.downloader)
    if environment.find() is None:
        (rig.cache.envs / recipe.digest).symlink_to(shared_cache() / "envs" / recipe.digest)
    return Verifier(lambda: environment)


@asynccontextmanager
async def signed_on(folder: Path, hub: HubSettings | None = None) -> AsyncGenerator[SignedArtifacts]:
    settings = hub or HubSettings()
    async with rig_on(folder, IndexSettings("http://127.0.0.1:1/simple"), hub=settings) as rig:
        files = SignatureFiles(rig.web, rig.cache, settings)
        yield SignedArtifacts(rig.artifacts, files, verifier_on(rig))


def fetch(folder: Path, artifact: ResolvedArtifact, hub: HubSettings | None = None) -> Path:
    async def whole() -> Path:
        async with signed_on(folder, hub) as artifacts:
            return await artifacts.fetch(artifact, ignore)

    return asyncio.run(whole())


def refuses(folder: Path, artifact: ResolvedArtifact, *words: str) -> None:
    with pytest.raises(AgentError) as raised:
        fetch(folder, artifact)
    assert raised.value.cause is FailureCause.SIGNATURE_REFUSED, raised.value.message
    for each in words:
        assert each in raised.value.message


def local(path: Path, signature: Path, *signers: Signer) -> ResolvedArtifact:
    content = path.read_bytes()
    return ResolvedArtifact(
        source=f"file://{path}",
        name=path.name,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        proof=SignedBy(signature=f"file://{signature}", signers=signers),
    )


@pytest.mark.usefixtures("packages")
def test_a_file_is_given_with_its_signature_and_not_with_another_ones(tmp_path: Path, key: SigningKey) -> None:
    model, other, signature = tmp_path / "model.gguf", tmp_path / "other.gguf", tmp_path / "model.sig"
    model.write_bytes(b"weights")
    other.write_bytes(b"other weights")
    key.sign(model, signature)
    by_key = Signer(public_key=key.public_pem)
    assert fetch(tmp_path / "cache", local(model, signature, by_key)) == model
    refuses(
        tmp_path / "cache",
        local(other, signature, by_key),
        "'other.gguf' is not given to an engine",
        f"must have sha256 {hashlib.sha256(b'weights').hexdigest()} as signed",
        f"it has {hashlib.sha256(b'other weights').hexdigest()}",
    )


def test_only_who_is_named_counts(tmp_path: Path, packages: Path, key: SigningKey) -> None:
    model, by_key, by_certificate = tmp_path / "model.gguf", tmp_path / "key.sig", tmp_path / "certificate.sig"
    model.write_bytes(b"weights")
    key.sign(model, by_key)
    key.sign_by_certificate(model, by_certificate)
    stranger = make_key(packages, tmp_path / "stranger")
    own = (Signer(public_key=key.public_pem), Signer(authorities=key.authorities_pem))
    strange = (Signer(public_key=stranger.public_pem), Signer(authorities=stranger.authorities_pem))
    for signature in (by_key, by_certificate):
        assert fetch(tmp_path / "cache", local(model, signature, *strange, *own)) == model
        refuses(tmp_path / "cache", local(model, signature, *strange), f"by {stranger.name} or a certificate of")
    refuses(tmp_path / "cache", local(model, by_key, strange[0]), f"by {stranger.name}; what was found: a signature by")
    refuses(tmp_path / "cache", local(model, by_key, strange[0]), f"a signature by {key.name}.")
    refuses(tmp_path / "cache", local(model, by_certificate, own[0]), "a signature by a certificate with its chain")
    refuses(tmp_path / "cache", local(model, by_key, own[1]), "a signature by a key")
    refuses(tmp_path / "cache", local(model, by_key), "it must be signed by")


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"covey-token", "it is none (it has 11 characters)"),
        (b"\xff\xfe", "it is no text"),
        (b"[" * 100_000, "it is none"),
        (b'{"verificationMaterial": {"publicKey": {}}, "dsseEnvelope": 7}', "doesn't hold"),
    ],
)
def test_what_is_no_signature_is_refused_in_words(tmp_path: Path, key: SigningKey, content: bytes, words: str) -> None:
    model, signature = tmp_path / "model.gguf", tmp_path / "model.sig"
    model.write_bytes(b"weights")
    signature.write_bytes(content)
    refuses(tmp_path / "cache", local(model, signature, Signer(public_key=key.public_pem)), words)
    with pytest.raises(AgentError) as raised:
        fetch(tmp_path / "cache", local(model, signature, Signer(public_key=key.public_pem)))
    assert "covey-token" not in raised.value.message, "a Model may name any file"


@pytest.mark.usefixtures("packages")
def test_a_changed_signature_is_nobodys(tmp_path: Path, key: SigningKey) -> None:
    model, signature = tmp_path / "model.gguf", tmp_path / "model.sig"
    model.write_bytes(b"weights")
    key.sign(model, signature)
    bundle = json.loads(signature.read_text())
    envelope = dict(bundle["dsseEnvelope"])
    for changed, words in (
        (envelope | {"payload": "e30="}, "doesn't hold"),
        (envelope | {"signatures": list[str]()}, "one signed statement"),
    ):
        signature.write_text(json.dumps(bundle | {"dsseEnvelope": changed}))
        refuses(tmp_path / "cache", local(model, signature, Signer(public_key=key.public_pem)), words)


@pytest.mark.usefixtures("packages")
def test_a_repositorys_signature_does_for_the_files_that_are_needed_also_without_the_hub(
    tmp_path: Path, key: SigningKey
) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"not fetched"}
    folder = tmp_path / "repository"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    key.sign(folder, tmp_path / "model.sig")
    listed = tuple(
        ArtifactFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in sorted(files.items())
        if name != "README.md"
    )
    whole = hashlib.sha256("".join(f"{each.sha256}  {each.name}\n" for each in listed).encode()).hexdigest()
    with running_hub() as hub:
        hub.hub.token = "hf_secretsecret"
        settings = HubSettings(hub.base, "hf_secretsecret")
        commit = hub.push("org/model", files | {"model.sig": (tmp_path / "model.sig").read_bytes()})
        artifact = ResolvedArtifact(
            source="hf://org/model",
            name="model",
            size_bytes=sum(each.size_bytes for each in listed),
            sha256=whole,
            revision=commit,
            files=listed,
            proof=SignedBy(signature="hf://org/model#model.sig", signers=(Signer(public_key=key.public_pem),)),
        )
        assert {path.name for path in fetch(tmp_path / "cache", artifact, settings).iterdir()} == {
            "config.json",
            "model.safetensors",
        }
    assert fetch(tmp_path / "cache", artifact, settings).is_dir(), "the hub is gone; its signature is kept"


@pytest.mark.usefixtures("packages")
def test_nothing_is_fetched_of_what_is_not_signed(tmp_path: Path, key: SigningKey) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    key.sign(model, tmp_path / "model.sig")
    with running_hub() as hub:
        commit = hub.push("org/model", {"model.gguf": b"w" * 8192, "model.sig": (tmp_path / "model.sig").read_bytes()})
        artifact = ResolvedArtifact(
            source="hf://org/model#model.gguf",
            name="model.gguf",
            size_bytes=8192,
            sha256=hashlib.sha256(b"w" * 8192).hexdigest(),
            revision=commit,
            proof=SignedBy(signature="hf://org/model#model.sig", signers=(Signer(public_key=key.public_pem),)),
        )
        with pytest.raises(AgentError, match="is not given to an engine"):
            fetch(tmp_path / "cache", artifact, HubSettings(hub.base))
        assert hub.requests_for("model.gguf") == []


@pytest.mark.usefixtures("packages")
def test_a_real_signature_of_sigstore_holds_without_a_network(tmp_path: Path, attested: Path) -> None:
    signature = tmp_path / "bundle.json"
    signature.write_text(render_bundle(attested / f"{ATTESTED}.publish.attestation"))
    by_workflow = Signer(sigstore=SigstoreIdentity(identity=IDENTITY, issuer=ISSUER))
    artifact = local(attested / ATTESTED, signature, by_workflow)
    assert artifact.sha256 == ATTESTED_SHA256
    assert fetch(tmp_path / "cache", artifact) == attested / ATTESTED
    by_another = Signer(sigstore=SigstoreIdentity(identity=f"{IDENTITY}-rc1", issuer=ISSUER))
    refuses(tmp_path / "cache", local(attested / ATTESTED, signature, by_another), f"actual SANs: {{'{IDENTITY}'}}")
    changed = tmp_path / ATTESTED
    changed.write_bytes((attested / ATTESTED).read_bytes() + b"x")
    refuses(tmp_path / "cache", local(changed, signature, by_workflow), f"must have sha256 {ATTESTED_SHA256} as signed")


def install(folder: Path, url: str, content: bytes) -> Path:
    """An engine of one wheel, from an index."""
    file = PinnedFile(
        "circleci-sign-publish-example", "0.0.1.dev137", WHEEL, hashlib.sha256(content).hexdigest(), len(content)
    )
    recipe = Recipe("Example", file.version, (file,), 1000, "circleci_sign_publish_example/__init__.py", "Do without.")

    async def whole() -> Path:
        async with rig_on(folder, IndexSettings(url)) as rig:
            provenances = IndexProvenances(rig.web, verifier_on(rig))
            return await Environment(recipe, rig.web, rig.cache, rig.downloader, provenances).ensure(ignore)

    return asyncio.run(whole())


@pytest.mark.usefixtures("packages")
def test_an_engines_file_must_have_the_provenance_that_the_index_gives(
    tmp_path: Path, attested: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, provenance = (attested / WHEEL).read_bytes(), (attested / f"{WHEEL}.provenance").read_text()
    caplog.set_level("INFO")
    for name, published, words in (
        ("real", provenance, "was published by CircleCI 'github.com/CircleCI-Public/sign-and-publish-examples"),
        ("none", None, ""),
        ("page", "<html>", "not looked at; its pinned digest is: must be a provenance of version 1 (PEP 740)"),
        ("newer", provenance.replace('"CircleCI"', '"Newer"'), "it can't be read as one (1 validation error"),
    ):
        caplog.clear()
        with running_index() as index:
            index.add(WHEEL, content)
            if published is not None:
                index.state.provenances[WHEEL] = published.encode()
            assert install(tmp_path / name, index.url, content).is_dir()
            assert words in caplog.text
    for name, published, words in (
        ("stranger", provenance.replace("fdd9283f", "aaaaaaaa"), "does not match expected Trusted Publisher"),
        ("empty", '{"version": 1, "attestation_bundles": []}', "must hold an attestation of its publisher"),
        (
            "another file's",
            (attested / f"{ATTESTED}.provenance").read_text(),
            f"its attestation is of '{ATTESTED}' with {ATTESTED_SHA256}",
        ),
    ):
        with running_index() as index:
            index.add(WHEEL, content)
            index.state.provenances[WHEEL] = published.encode()
            with pytest.raises(AgentError) as raised:
                install(tmp_path / name, index.url, content)
            assert raised.value.cause is FailureCause.SIGNATURE_REFUSED
            assert words in raised.value.message, name
            assert index.requests_for(WHEEL) == [], "nothing was fetched"
    with running_index() as index:
        index.add(WHEEL, content)
        index.state.provenances[WHEEL] = b""
        assert install(tmp_path / "away", index.url, content).is_dir(), "the pinned digest stands"
    assert "its pinned digest is" in caplog.text


MODEL = """apiVersion: covey.dev/v1alpha1
kind: Model
metadata: {{name: smollm2}}
spec:
  tasks: [Chat]
  trust:
    requires: Signature
    signers: [{{publicKey: {key}}}]
  variants:
  - {{name: v, format: Gguf, source: 'file://{model}', signature: 'file://{signature}', engines: [LlamaServer]}}
---
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {{name: smollm2}}
spec:
  modelRef: {{name: smollm2}}
  context: {{tokens: 1024}}
"""


def test_a_fleet_serves_what_is_signed_and_says_what_is_not(tmp_path: Path, packages: Path, key: SigningKey) -> None:
    model, signature = provide_real_parts().model, tmp_path / "model.sig"
    key.sign(model, signature)
    stranger = make_key(packages, tmp_path / "stranger")
    folder = tmp_path / "models"
    folder.mkdir()

    def declare(folder: Path, public_pem: str) -> None:
        text = MODEL.format(key=json.dumps(public_pem), model=model, signature=signature)
        (folder / "model.yaml").write_text(text)

    declare(folder, key.public_pem)
    with running_fleet(folder) as fleet:
        assert fleet.ask().status_code == 200
        declare(fleet.folder, stranger.public_pem)

        def failures() -> list[dict[str, str]]:
            placement = json.loads(fleet.covey("get", "placement/smollm2", "-o", "json").stdout)
            return placement["status"].get("failures", [])

        wait_until(failures, "the new revision failed")
        assert [each["cause"] for each in failures()] == ["SignatureRefused"]
        assert "it must be signed by the key SHA256:" in fleet.covey("why", "placement/smollm2").stdout
        assert fleet.ask().status_code == 200, "what was signed by a signer of then serves on"
