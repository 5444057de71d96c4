"""Addresses of git sources: what each part means, and that a secret in one is refused without being repeated."""

import pytest
from covey_controller.stores.git.address import GitAddress, is_git_address, parse_git_address
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("git+https://forge.example/team/fleet.git", GitAddress("https://forge.example/team/fleet.git", "", "")),
        ("git+https://forge.example/fleet#prod", GitAddress("https://forge.example/fleet", "prod", "")),
        (
            "git+https://forge.example/fleet#/prod/eu/@v1.2",
            GitAddress("https://forge.example/fleet", "prod/eu", "v1.2"),
        ),
        ("git+https://forge.example:8443/f#@main", GitAddress("https://forge.example:8443/f", "", "main")),
        ("git+ssh://git@forge.example:22/f#a@team/x@y", GitAddress("ssh://git@forge.example:22/f", "a", "team/x@y")),
        ("git+file:///srv/fleet#a%40b@main", GitAddress("file:///srv/fleet", "a@b", "main")),
        ("git+file:///srv/my%20fleet", GitAddress("file:///srv/my%20fleet", "", "")),
    ],
)
def test_an_address_is_taken_apart_and_put_together(text: str, address: GitAddress) -> None:
    assert is_git_address(text)
    assert parse_git_address(text) == address
    assert parse_git_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("git+http://forge.example/f", "got the scheme 'git+http'"),
        ("git+ext::sh -c true", "got the scheme 'git+ext'"),
        ("git+https://forge.example", "must name a host and a repository"),
        ("git+ssh://-oProxyCommand=x/f", "must name a host and a repository"),
        ("git+file://host/f", "with an absolute path"),
        ("git+https://forge.example:port/f", "host or port can't be read"),
        ("git+https://forge.example/f#a/../b", "no empty, '.' or '..' part"),
        ("git+https://forge.example/f#a@-x", "ref in the source must be a branch"),
        ("git+https://forge.example/f#a@x..y", "ref in the source must be a branch"),
        ("git+https://forge.example/f#a@x y", "ref in the source must be a branch"),
        ("git+ssh://-x@forge.example/f", "source's user must be letters"),
        ("git+https://forge.example/f?ref=x", "must not hold a query"),
        (f"git+https://forge.example/{'f' * 3000}", "at most 2048"),
        ("git+https://forge.example/f\n", "printable"),
    ],
)
def test_what_is_no_address_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match="source") as caught:
        parse_git_address(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "git+https://ada:hunter2@forge.example/f",
        "git+https://hunter2@forge.example/f",
        "git+ssh://ada:hunter2@forge.example/f",
        "git+file://ada:hunter2@/f",
        "git+https://:hunter2@forge.example/f",
        "git+https://forge.example/f?access_token=hunter2",
    ],
)
def test_a_secret_is_refused_with_what_to_do_instead_and_never_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="source must not hold") as caught:
        parse_git_address(text)
    assert "hunter2" not in str(caught.value)
    if "?" not in text:
        assert "COVEY_GIT_CREDENTIALS" in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_git_address(f"git+{text}")
    except ValueError:
        return
    assert parse_git_address(str(address)) == address
    assert address.scheme in ("https", "ssh", "file")
    assert not address.url.startswith("-")


@given(
    st.sampled_from(["https://forge.example/f", "ssh://git@forge.example/f", "file:///f"]),
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=6), max_size=3),
    st.sampled_from(["", "main", "release/1.2", "v1", "0" * 40, "refs/tags/v1", "a@b"]),
)
def test_every_path_can_be_written(url: str, parts: list[str], ref: str) -> None:
    path = "/".join(parts)
    address = GitAddress(url, path, ref)
    if path.isprintable() and not {".", ".."} & set(parts):
        assert parse_git_address(str(address)) == address
