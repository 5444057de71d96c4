"""Names of the files over which one GGUF model is split: `NAME-00001-of-00003.gguf`, as llama.cpp writes them."""

import re

from covey_planner.geometry.gguf import MAX_SHARDS
from covey_planner.geometry.reader import HeaderInvalid

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf$")


def list_shards(name: str) -> tuple[str, ...]:
    """The names of all files of the set that `name` belongs to, in order; `name` alone when it is no part of one."""
    match = _SHARD.match(name)
    if match is None:
        return (name,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= MAX_SHARDS:
        raise HeaderInvalid(
            f"file '{name}' must be one of 1 to {MAX_SHARDS} files and number 1 to their count; got {number} of {count}"
        )
    return tuple(f"{match['stem']}-{each:05}-of-{count:05}.gguf" for each in range(1, count + 1))
