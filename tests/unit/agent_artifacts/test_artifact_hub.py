"""A hub's answers and the machine's settings for it: what is read, and what is never taken."""

import json
from pathlib import Path

import pytest
from covey_agent.artifacts.hub import (
    HubSettings,
    choose_gguf,
    file_url,
    observe_hub_settings,
    parse_repository,
    revision_url,
)
from covey_agent.artifacts.index import parse_page
from covey_agent.ports import AgentError
from covey_api.source import HubSource
from hypothesis import given
from hypothesis import strategies as st

COMMIT = "c" * 40


def page(*siblings: object, sha: object = COMMIT) -> bytes:
    return json.dumps({"sha": sha, "siblings": siblings}).encode()


def test_large_and_small_files_have_the_digests_that_the_hub_gives() -> None:
    lfs = {"sha256": "a" * 64, "size": 5000, "pointerSize": 134}
    found = parse_repository(
        page(
            {"rfilename": "model.gguf", "size": 134, "blobId": "b" * 40, "lfs": lfs},
            {"rfilename": "config.json", "size": 2, "blobId": "d" * 40},
            {"rfilename": "none.json", "size": 3, "blobId": "not a hash"},
        )
    )
    assert found.commit == COMMIT
    large, small, none = (found.files[name] for name in ("model.gguf", "config.json", "none.json"))
    assert (large.size_bytes, large.sha256) == (5000, "a" * 64)
    assert (small.sha256, small.blob_id) == ("", "d" * 40)
    assert (none.sha256, none.blob_id) == ("", "")


@pytest.mark.parametrize(
    "name",
    [
        "../escape.gguf",
        "/etc/passwd",
        "a/../../b",
        "a\nb.gguf",
        "a\x7fb",
        "x" * 1025,
        "x" * 256,
        "a/...",
        "",
        "a\ud800b",
        None,
        5,
    ],
)
def test_a_name_that_leads_out_is_no_file(name: object) -> None:
    assert parse_repository(page({"rfilename": name, "size": 1})).files == {}


@pytest.mark.parametrize("text", [b"[]", b"{}", b"null", page(sha="main"), page(sha=5), b'{"sha": "%b"}' % (b"c" * 40)])
def test_what_is_no_description_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no commit `sha` or no list `siblings`"):
        parse_repository(text)


def test_brackets_without_end_are_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_repository(b"[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_page("application/json", "[" * 100_000, "http://index/")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(text: bytes) -> None:
    try:
        parse_repository(text)
    except ValueError:
        return


def test_the_only_model_is_meant_without_a_name_when_it_lies_at_the_top() -> None:
    def choose(*paths: str) -> list[str]:
        found = parse_repository(page(*({"rfilename": path, "size": 1} for path in paths)))
        return [file.path for file in choose_gguf(found, HubSource("org/model", "main", ""))]

    assert choose("README.md", "m.gguf") == ["m.gguf"]
    assert choose("m-00001-of-00002.gguf", "m-00002-of-00002.gguf") == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
    for paths in (("Q4/m.gguf",), ("a.gguf", "b.gguf"), ("Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf")):
        with pytest.raises(AgentError, match=rf"no single GGUF model at its top\. Choose one .*'{paths[0]}'"):
            choose(*paths)


def test_a_revision_is_one_part_of_the_address_and_a_path_keeps_its_parts() -> None:
    endpoint = "https://hub.example"
    source = HubSource("org/model", "refs/pr/1", "")
    assert (
        revision_url(endpoint, source) == "https://hub.example/api/models/org/model/revision/refs%2Fpr%2F1?blobs=true"
    )
    url = file_url(endpoint, "org/model", COMMIT, "a b/c?d#e.gguf")
    assert url == f"https://hub.example/org/model/resolve/{COMMIT}/a%20b/c%3Fd%23e.gguf"


def test_settings_are_those_of_the_hubs_own_tools(tmp_path: Path) -> None:
    none = observe_hub_settings({}, tmp_path)
    assert (none.endpoint, none.origin.token) == (HubSettings().endpoint, "")
    folder = tmp_path / ".cache" / "huggingface"
    folder.mkdir(parents=True)
    (folder / "token").write_text("hf_file\n")
    assert observe_hub_settings({}, tmp_path).origin.token == "hf_file"
    assert observe_hub_settings({"HF_TOKEN": " hf_environment "}, tmp_path).origin.token == "hf_environment"
    (tmp_path / "other").write_text("hf_other")
    assert observe_hub_settings({"HF_TOKEN_PATH": str(tmp_path / "other")}, tmp_path).origin.token == "hf_other"
    mirror = observe_hub_settings({"HF_ENDPOINT": "https://mirror.example/hf/"}, tmp_path)
    assert mirror.endpoint == "https://mirror.example/hf"


@pytest.mark.parametrize("content", [b"two words", b"x" * 2000, b"\xff\xfe", b"a\nb"])
def test_a_token_that_is_none_is_not_used_and_not_quoted(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_bytes(content)
    assert observe_hub_settings({"HF_TOKEN_PATH": str(tmp_path / "token")}, tmp_path).origin.token == ""
    assert "is not used" in caplog.text
    assert "words" not in caplog.text


def test_a_login_in_the_endpoint_is_cut_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = observe_hub_settings({"HF_ENDPOINT": "https://user:secret@hub.example"}, tmp_path)
    assert settings.endpoint == "https://hub.example"
    assert "secret" not in caplog.text + repr(settings)


def test_a_new_token_in_the_file_is_taken_without_a_restart(tmp_path: Path) -> None:
    settings = observe_hub_settings({"HF_TOKEN_PATH": str(tmp_path / "token")}, tmp_path)
    assert settings.origin.token == ""
    for token in ("hf_one", "hf_two"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert settings.origin.token == token
        assert token not in f"{settings} {settings.origin}"
