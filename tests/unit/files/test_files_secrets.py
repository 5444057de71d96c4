"""Secrets that sops and age encrypted: opened with the key, refused in words without it, and never shown."""

import base64
import re
import shutil
from pathlib import Path

import pytest
from covey_api.kinds import ObjectKey
from covey_controller.ports import InvalidSet
from covey_controller.stores.files.age_keys import AgeKeys, read_age_keys
from covey_controller.stores.files.documents import parse_with_secrets
from covey_controller.stores.files.edit import plan_apply, verify_edit
from covey_controller.stores.files.rest import Rest, SecretDocument, SetRead, parse_set, step
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parent / "secrets"
HUB = ObjectKey("Secret", "team-a", "hub")
VALUES = {
    "password": b"hunter2",
    "token": "hf_not-a-real-token\nsecond line é".encode(),
    "empty": b"",
    "number": b"42",
}
PLAIN_WORDS = ("hunter2", "aHVudGVyMg", "hf_not", "second line")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> AgeKeys:
    path = tmp_path_factory.mktemp("keys") / "key"
    shutil.copyfile(FIXTURES / "test-only.key", path)
    path.chmod(0o600)
    return read_age_keys(path)


def read(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def open_one(name: str, content: bytes, keys: AgeKeys) -> SecretDocument:
    (secret,) = parse_with_secrets({name: content}, keys)
    assert isinstance(secret, SecretDocument)
    return secret


def open_or_refuse(name: str, content: bytes, keys: AgeKeys) -> tuple[list[SecretDocument], str]:
    try:
        return [one for one in parse_with_secrets({name: content}, keys) if isinstance(one, SecretDocument)], ""
    except InvalidSet as invalid:
        return [], repr(invalid.errors)


def refusal_of(name: str, content: bytes, keys: AgeKeys | None) -> str:
    with pytest.raises(InvalidSet) as caught:
        parse_with_secrets({name: content}, keys)
    for word in PLAIN_WORDS:
        assert word not in repr(caught.value.errors)
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["regex.yaml", "whole.yaml", "mac-only-encrypted.yaml", "binary.yaml.age", "armored.yaml.age"]
)
def test_a_secret_that_a_real_tool_encrypted_is_opened(keys: AgeKeys, name: str) -> None:
    secret = open_one(name, read(name), keys)
    assert secret.key == HUB
    assert secret.values == VALUES


@pytest.mark.parametrize("name", ["regex.yaml", "whole.yaml", "binary.yaml.age", "armored.yaml.age"])
def test_without_a_key_it_is_refused_with_what_to_do(name: str) -> None:
    words = refusal_of(name, read(name), None)
    assert "no age key was given: start with `--age-key-file FILE`" in words


@pytest.mark.parametrize("name", ["other-recipient.yaml"])
def test_a_secret_for_somebody_else_is_refused(keys: AgeKeys, name: str) -> None:
    assert "no key in the age key file opens it" in refusal_of(name, read(name), keys)


@pytest.mark.parametrize("name", ["model.yaml", "model.yaml.age"])
def test_other_kinds_must_not_be_encrypted(keys: AgeKeys, name: str) -> None:
    words = refusal_of(name, read(name), keys)
    assert "only documents with `apiVersion: v1` and `kind: Secret` may be encrypted" in words


def test_a_plain_secret_is_refused_with_a_key_too(keys: AgeKeys) -> None:
    plain = b"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {token: hunter2}\n"
    assert "must not be in the source in plain text" in refusal_of("a.yaml", plain, keys)


def test_a_value_added_in_plain_text_is_refused(keys: AgeKeys) -> None:
    for name in ("regex.yaml", "mac-only-encrypted.yaml"):
        changed = read(name).replace(b"\ndata:\n", b"\ndata:\n    other: aHVudGVyMg==\n")
        words = refusal_of(name, changed, keys)
        assert "MAC doesn't fit" in words or "`data.other` must be encrypted" in words


def test_a_removed_a_moved_and_a_renamed_value_are_refused(keys: AgeKeys) -> None:
    content = read("regex.yaml").decode()
    lines = content.splitlines(keepends=True)
    removed = "".join(line for line in lines if "number: ENC" not in line)
    assert "MAC doesn't fit" in refusal_of("a.yaml", removed.encode(), keys)
    moved = content.replace("    number: ENC", "    nummer: ENC")
    assert "`stringData.nummer` was changed or moved" in refusal_of("a.yaml", moved.encode(), keys)
    renamed = content.replace("name: hub", "name: bub")
    assert "MAC doesn't fit" in refusal_of("a.yaml", renamed.encode(), keys)


def test_a_mac_of_another_time_is_refused(keys: AgeKeys) -> None:
    changed = re.sub(rb'lastmodified: "(....)', b'lastmodified: "2001', read("regex.yaml"))
    assert "`sops.mac` was changed or moved" in refusal_of("a.yaml", changed, keys)


def test_a_split_data_key_is_refused_by_name(keys: AgeKeys) -> None:
    changed = read("regex.yaml").replace(b"sops:\n", b"sops:\n    key_groups: [{age: []}]\n")
    assert "`sops.key_groups`" in refusal_of("a.yaml", changed, keys)


@given(st.data())
def test_no_damage_gets_more_than_a_refusal_or_the_same_values(keys: AgeKeys, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["regex.yaml", "whole.yaml", "armored.yaml.age", "binary.yaml.age"]))
    content = bytearray(read(name))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    found, shown = open_or_refuse(name, bytes(content), keys)
    assert not any(word in shown for word in PLAIN_WORDS)
    # Comments and SOPS' own notes aren't under the MAC; whatever is there, no other secret comes of it.
    for secret in found:
        assert secret.key == HUB
        assert set(secret.values.values()) <= set(VALUES.values())


def test_what_prints_a_secret_prints_its_name_alone(keys: AgeKeys) -> None:
    secret = open_one("regex.yaml", read("regex.yaml"), keys)
    assert "hub" in repr(secret)
    for word in (*PLAIN_WORDS, base64.b64encode(VALUES["token"]).decode()):
        assert word not in repr(secret)


def test_secrets_come_and_go_with_their_set(keys: AgeKeys) -> None:
    def parse(files: dict[str, bytes]) -> Rest:
        nonlocal rest
        whole = parse_set("a", files, lambda given: parse_with_secrets(given, keys))
        fresh = Rest(False, rest.running, stirred_at=float("-inf"), unrest_since=0.0, secrets=rest.secrets)
        rest, _ = step(fresh, SetRead(whole), 10.0)
        return rest

    model = b"apiVersion: covey.dev/v1alpha1\nkind: Fleet\nmetadata: {name: default}\n"
    rest = Rest(False, frozenset(), stirred_at=float("-inf"), unrest_since=0.0)
    assert parse({"s.yaml": read("regex.yaml"), "m.yaml": model}).secrets[HUB].values == VALUES
    assert parse({"s.yaml": b"a: [", "m.yaml": model}).secrets[HUB].values == VALUES, "a broken set changes nothing"
    assert parse({}).secrets[HUB].values == VALUES, "an empty source deletes nothing"
    assert parse({"m.yaml": model}).secrets == {}


def test_an_encrypted_document_is_applied_as_it_is_written(keys: AgeKeys) -> None:
    text = read("regex.yaml").decode()
    applied = parse_with_secrets({"x": text.encode()}, keys)
    edit = plan_apply({}, (), applied, text, None, frozenset())
    assert [one.outcome for one in edit.results] == ["created"]
    files = {path: content for path, content in edit.files.items() if content is not None}
    assert list(files.values()) == [text.encode()]
    verify_edit(edit, (), applied, frozenset(), parse_with_secrets(files, keys))


def test_a_key_file_is_read_only_when_it_is_private_and_holds_keys(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("AGE-SECRET-KEY-nonsense\n")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_age_keys(path)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=r"line 1 .* must be a key") as caught:
        read_age_keys(path)
    assert "nonsense" not in str(caught.value)
    path.write_text("# nothing\n")
    with pytest.raises(ValueError, match="must hold at least one key"):
        read_age_keys(path)
