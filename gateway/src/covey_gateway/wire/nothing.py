"""What asks for nothing: the one rule by which a field that isn't taken may be there all the same.

Clients in typed languages send every field that they know, empty: `"template": ""`, `"mcp_servers": []`. To refuse
those would be to refuse the client. `null`, `false`, `""`, `[]` and `{}` say no more than absence does. A number asks
for something, but for the one by which a name's own API says the same; and so does the `false` of a name that is true
unless it is said (`cache_prompt`).
"""

from collections.abc import Mapping

import msgspec

_EMPTY = frozenset((b"null", b"false", b'""', b"[]", b"{}"))
_TRUE_UNSAID = frozenset(("cache_prompt",))
_DEFAULTS: Mapping[str, tuple[bytes, ...]] = {
    "best_of": (b"1",),
    "embd_normalize": (b"2",),
    "id_slot": (b"-1",),
    "n": (b"1",),
    "n_cache_reuse": (b"0",),
    "n_discard": (b"0",),
    "n_keep": (b"0",),
    "n_predict": (b"-1",),
    "n_probs": (b"0",),
    "num_keep": (b"0",),
    "num_predict": (b"-1",),
    "priority": (b"0",),
    "slot_id": (b"-1",),
    "t_max_predict_ms": (b"0", b"-1"),
    "tfs_z": (b"1", b"1.0"),
    "top_logprobs": (b"0",),
    "truncate": (b'"NONE"',),
}
# Longer values have something in them, and aren't copied to be looked at.
_LONGEST_BYTES = 64


def asks_nothing(name: str, raw: msgspec.Raw) -> bool:
    """Whether a field's value says what its absence says."""
    view = memoryview(raw)
    if view.nbytes > _LONGEST_BYTES:
        return False
    value = bytes(view).strip()
    if value[:1] in (b"[", b"{"):
        value = b"".join(value.split())  # `[ ]` is empty, too; a text of blanks isn't
    if value == b"false" and name in _TRUE_UNSAID:
        return False
    return value in _EMPTY or value in _DEFAULTS.get(name, ())
