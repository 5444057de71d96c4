"""A registry's manifests, challenges and logins: what is taken from them, and what is refused."""

import hashlib
import json
from pathlib import Path

import pytest
from covey_agent.artifacts.hub import choose_gguf
from covey_agent.artifacts.manifest import (
    find_helper,
    find_login,
    host_of,
    parse_challenge,
    parse_manifest,
    parse_token,
)
from covey_agent.ports import AgentError
from covey_api.source import HubSource, OciSource, parse_source

DIGEST = "sha256:" + "a" * 64


def layer(**changes: object) -> dict[str, object]:
    described: dict[str, object] = {
        "digest": DIGEST,
        "size": 5,
        "annotations": {"org.opencontainers.image.title": "a.gguf"},
    }
    return described | changes


def names(*layers: object) -> list[str]:
    return list(parse_manifest(json.dumps({"layers": layers}).encode(), "latest").files)


@pytest.mark.parametrize(
    "wrong",
    [
        layer(digest="sha512:" + "a" * 128),
        layer(digest=7),
        layer(size=-1),
        layer(size="5"),
        layer(annotations={}),
        layer(annotations={"org.opencontainers.image.title": "../a.gguf"}),
        layer(annotations={"org.opencontainers.image.title": "/a.gguf"}),
        layer(annotations={"org.opencontainers.image.title": 7}),
        layer(mediaType="application/vnd.cncf.model.weight.v1.tar"),
        layer(annotations={}, mediaType=["application/vnd.docker.ai.gguf.v3"]),
        layer(annotations={}, mediaType={}),
        layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip"),
        layer(annotations={}, mediaType="application/vnd.oci.image.layer.v1.tar"),
        layer(
            annotations={"org.opencontainers.image.title": "folder", "io.deis.oras.content.unpack": "true"},
            mediaType="application/vnd.oci.image.layer.v1.tar",
        ),
        7,
        None,
    ],
)
def test_a_layer_that_is_no_file_is_left_out(wrong: object) -> None:
    assert names(wrong) == []
    assert names(wrong, layer()) == ["a.gguf"]
    found = parse_manifest(json.dumps({"layers": [wrong, layer()]}).encode(), "latest")
    with pytest.raises(AgentError, match=r"It has: 'a.gguf'.*Left out, since they are no named files: .* of type "):
        choose_gguf(found, HubSource("r/m", "latest", "b.gguf"))


def test_a_file_that_oras_was_told_no_type_of_is_a_file() -> None:
    assert names(layer(mediaType="application/vnd.oci.image.layer.v1.tar")) == ["a.gguf"]


def test_a_manifest_has_the_digest_by_which_it_was_asked_for() -> None:
    text = json.dumps({"layers": [layer()]}).encode()
    digest = hashlib.sha256(text).hexdigest()
    assert parse_manifest(text, f"sha256:{digest}").commit == digest
    with pytest.raises(ValueError, match=f"it must have sha256 {'b' * 64}, and has {digest}"):
        parse_manifest(text, "sha256:" + "b" * 64)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"layers": 7}', b"<html>", b"[" * 100_000, b'{"manifests": []}'])
def test_what_is_no_manifest_is_said(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"no list `layers`|nested|Expecting|index of several"):
        parse_manifest(text, "latest")


def test_challenges_and_tokens_are_read() -> None:
    asked = 'Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull"'
    scheme, parameters = parse_challenge(asked)
    assert (scheme, parameters["realm"], parameters["scope"]) == (
        "bearer",
        "https://auth.example/token",
        "repository:a/b:pull",
    )
    assert [parse_token(each) for each in (b'{"token": "t"}', b'{"access_token": "u"}')] == ["t", "u"]
    assert [parse_token(each) for each in (b"", b"[]", b'{"token": "a\\nb"}', b'{"token": 7}')] == [""] * 4


def test_logins_are_those_that_docker_and_podman_keep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / ".docker").mkdir()
    entry = {"auth": "Y292ZXk6c2VjcmV0OnNlY3JldA=="}
    (tmp_path / ".docker" / "config.json").write_text(
        json.dumps(
            {
                "auths": {
                    "r.example": entry,
                    "https://index.docker.io/v1/": entry,
                    "bad": {"auth": "%"},
                    "far": {"auth": "ü"},
                }
            }
        )
    )
    for registry in ("r.example", "docker.io"):
        login = find_login({}, tmp_path, registry)
        assert login is not None
        assert (login.user, login.password) == ("covey", "secret:secret")
        assert "secret" not in repr(login)
    assert [find_login({}, tmp_path, each) for each in ("bad", "far", "other.example")] == [None] * 3
    session = tmp_path / "run"
    (session / "containers").mkdir(parents=True)
    (session / "containers" / "auth.json").write_text(json.dumps({"auths": {"podman.example": entry}}))
    assert find_login({}, tmp_path, "podman.example") is None
    assert find_login({"XDG_RUNTIME_DIR": str(session)}, tmp_path, "podman.example") is not None
    (tmp_path / "auth.json").write_text("secret")
    assert find_login({"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}, tmp_path, "r.example") is not None
    assert "secret" not in caplog.text
    own = {"auth": "dGVhbTpzZWNyZXQ="}
    kept = {"quay.example/team": own, "quay.example": entry}
    (tmp_path / "auth.json").write_text(json.dumps({"auths": kept}))
    users = {
        repository: login.user
        for repository in ("team/model", "team", "teams/model", "")
        if (
            login := find_login(
                {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}, tmp_path, "quay.example", repository
            )
        )
    }
    assert users == {"team/model": "team", "team": "team", "teams/model": "covey", "": "covey"}
    assert host_of("docker.io") == "registry-1.docker.io"


@pytest.mark.parametrize(
    ("config", "helper"),
    [
        ({"credsStore": "desktop"}, "docker-credential-desktop"),
        ({"credsStore": "desktop", "credHelpers": {"r.example": "ecr-login"}}, "docker-credential-ecr-login"),
        ({"credHelpers": {"other.example": "gcloud"}}, ""),
        ({"credsStore": "../evil `x`"}, ""),
        ({"credsStore": 7, "credHelpers": []}, ""),
        ([], ""),
    ],
)
def test_a_program_that_keeps_dockers_logins_is_named_and_not_run(tmp_path: Path, config: object, helper: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_helper({"DOCKER_CONFIG": str(tmp_path)}, tmp_path, "r.example") == helper


def test_sources_of_registries_are_parsed() -> None:
    assert parse_source("oci://ghcr.io/org/model") == OciSource("ghcr.io", "org/model", "latest", "")
    assert parse_source("oci://r:5000/m:v1.0#Q4/a.gguf") == OciSource("r:5000", "m", "v1.0", "Q4/a.gguf")
    assert parse_source(f"oci://r/m@{DIGEST}") == OciSource("r", "m", DIGEST, "")
    # As registries' tools print it: the digest is what counts.
    assert parse_source(f"oci://r:5000/m:v1@{DIGEST}#a.gguf") == OciSource("r:5000", "m", DIGEST, "a.gguf")
    for wrong in (
        "oci://r",
        "oci://r/M",
        "oci://r/a//b",
        "oci://r/a/../b",
        "oci://r:0/a",
        "oci://u:p@r/a",
        "oci://r/a#../b",
        f"oci://r/m@{DIGEST}:v1",
    ):
        with pytest.raises(ValueError, match="must"):
            parse_source(wrong)
