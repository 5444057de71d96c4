"""Reads a document that SOPS encrypted: opens its data key, each value, and verifies the MAC over all of them. Pure.

No maintained Python library does, so this is the format's small half: reading, with age recipients. A value is
`ENC[AES256_GCM,data:…,iv:…,tag:…,type:…]`; its path (`data:token:`) is authenticated with it, so it can't be moved. The
MAC (SHA-512 over all plain values in order, itself encrypted, bound to the time of change) is what tells that no value
was removed, added or put back to an older one; nothing of the document is used before it holds. Messages name paths and
never values.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator
from typing import Any, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from covey_controller.stores.files.age_keys import AgeKeys, CannotOpen

METADATA = "sops"
# Each is tried once, and each costs a key agreement.
MAX_RECIPIENTS = 32
_DATA_KEY_BYTES = 32
_ENCRYPTED = re.compile(r"ENC\[AES256_GCM,data:(.+),iv:(.+),tag:(.+),type:([a-z]+)\]")
# What SOPS hashes first when only encrypted values are under the MAC, so that the two kinds are never equal.
_ONLY_ENCRYPTED = bytes.fromhex("8a3fd2ad54ce66527b1034f3d147be0b0b975b3bf44f72c6fdadec8176f27d69")

Path = tuple[str, ...]


def is_sops_document(document: dict[str, Any]) -> bool:
    return isinstance(document.get(METADATA), dict)


def open_document(document: dict[str, Any], keys: AgeKeys) -> tuple[dict[str, Any], frozenset[Path]]:
    """The plain document without SOPS' metadata, and the paths that were encrypted. CannotOpen says what is wrong."""
    metadata = cast("dict[str, Any]", document[METADATA])
    key = _open_data_key(metadata, keys)
    reader = _Reader(key, only_encrypted=metadata.get("mac_only_encrypted") is True)
    plain = {name: reader.open(value, (name,)) for name, value in document.items() if name != METADATA}
    changed_at = str(metadata.get("lastmodified", ""))
    mac = _decrypt(str(metadata.get("mac", "")), key, changed_at, "sops.mac")
    if not isinstance(mac, str) or not hmac.compare_digest(mac.encode(), reader.digest().encode()):
        raise CannotOpen(
            "its MAC doesn't fit its values: the file was changed without SOPS, or holds several documents. Take the "
            "last good one from the history, and edit it with `sops`"
        )
    return plain, frozenset(reader.encrypted)


def _open_data_key(metadata: dict[str, Any], keys: AgeKeys) -> bytes:
    if metadata.get("key_groups"):
        raise CannotOpen("its data key is split over `sops.key_groups`, which Covey doesn't read; use one group")
    recipients = metadata.get("age")
    if not isinstance(recipients, list) or not recipients:
        raise CannotOpen("it is encrypted to no age recipient (`sops.age`); add one with `sops --add-age`")
    fault = CannotOpen("`sops.age` holds no readable entry")
    for entry in cast("list[Any]", recipients)[:MAX_RECIPIENTS]:
        encrypted = cast("dict[str, Any]", entry).get("enc") if isinstance(entry, dict) else None
        if not isinstance(encrypted, str):
            continue
        try:
            key = keys.open(encrypted.encode())
        except CannotOpen as error:
            fault = error
            continue
        if len(key) == _DATA_KEY_BYTES:
            return key
        fault = CannotOpen(f"its data key must have {_DATA_KEY_BYTES} bytes; got {len(key)}")
    raise fault


class _Reader:
    """Opens values in the order in which they stand, and hashes them as SOPS does."""

    def __init__(self, key: bytes, *, only_encrypted: bool) -> None:
        self._key = key
        self._only_encrypted = only_encrypted
        self._hash = hashlib.sha512(_ONLY_ENCRYPTED if only_encrypted else b"")
        self.encrypted: set[Path] = set()

    def digest(self) -> str:
        return self._hash.hexdigest().upper()

    def open(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {name: self.open(below, (*path, name)) for name, below in fields.items()}
        if isinstance(value, list):
            # Entries of a list share its path.
            return list(self._open_entries(cast("list[Any]", value), path))
        if value is None:
            return None
        is_encrypted = isinstance(value, str) and _ENCRYPTED.fullmatch(value) is not None
        if is_encrypted:
            self.encrypted.add(path)
            value = _decrypt(value, self._key, ":".join(path) + ":", ".".join(path))
        if is_encrypted or not self._only_encrypted:
            self._hash.update(_as_hashed(value, path))
        return value

    def _open_entries(self, entries: list[Any], path: Path) -> Iterator[Any]:
        for entry in entries:
            # A comment in a list is an entry of its own to SOPS, and no value.
            if isinstance(entry, str) and (found := _ENCRYPTED.fullmatch(entry)) and found[4] == "comment":
                continue
            yield self.open(entry, path)


def _decrypt(text: str, key: bytes, bound_to: str, shown: str) -> str | int | float | bool | bytes:
    """A value in its own type. CannotOpen names it by `shown`."""
    found = _ENCRYPTED.fullmatch(text)
    if found is None:
        raise CannotOpen(f"`{shown}` must be encrypted by SOPS")
    try:
        sealed, nonce, tag = (base64.b64decode(part, validate=True) for part in found.groups()[:3])
        plain = AESGCM(key).decrypt(nonce, sealed + tag, bound_to.encode())
        return _as_typed(plain, found[4])
    except (binascii.Error, InvalidTag, ValueError):
        raise CannotOpen(f"`{shown}` was changed or moved since SOPS encrypted it") from None


def _as_typed(plain: bytes, kind: str) -> str | int | float | bool | bytes:
    match kind:
        case "str" | "time":
            return plain.decode()
        case "int":
            return int(plain)
        case "float":
            return float(plain)
        case "bool":
            return {b"True": True, b"False": False, b"true": True, b"false": False}[plain]
        case "bytes":
            return plain
        case _:
            raise ValueError(kind)


def _as_hashed(value: Any, path: Path) -> bytes:
    match value:
        case bool():
            return b"True" if value else b"False"
        case str():
            return value.encode()
        case int():
            return str(value).encode()
        case bytes():
            return value
        case _:
            # Fractions: no field of a Secret takes one, and their spelling is the one thing that differs by language.
            raise CannotOpen(f"`{'.'.join(path)}` must be text, a whole number, true or false")
