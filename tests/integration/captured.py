"""Streams of real engines, kept as they were written, and what is compared of them: all but what was sampled.

`captures/NAME.sse` is a stream verbatim, below comments that name its origin and its request. A fresh one must have the
same events, first met in the same order, with the same keys and kinds of values; in how many pieces a text comes, and
how many calls there are, doesn't matter.
`--golden-refresh` keeps the fresh one instead.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from covey_gateway.wire.body import is_array, is_object

_FOLDER = Path(__file__).parent / "captures"


@dataclass(frozen=True, slots=True)
class Capture:
    origin: str
    request: dict[str, Any]
    stream: bytes

    @property
    def events(self) -> list[Any]:
        """Their data; `[DONE]` as text."""
        data = [line[6:] for line in self.stream.decode().split("\n") if line.startswith("data: ")]
        return ["[DONE]" if each == "[DONE]" else json.loads(each) for each in data]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        return [choice["delta"] for one in self.events if is_object(one) for choice in one.get("choices", [])]

    def join(self, name: str) -> str:
        """A text of the first choice."""
        return "".join(delta.get(name) or "" for delta in self.deltas)


def read_capture(name: str) -> Capture:
    text = (_FOLDER / f"{name}.sse").read_bytes()
    origin, request, stream = text.split(b"\n", 2)
    return Capture(
        origin.decode().removeprefix(": origin: "),
        json.loads(request.removeprefix(b": request: ")),
        stream.lstrip(b"\n"),
    )


def check_capture(name: str, fresh: Capture, config: pytest.Config) -> None:
    if config.getoption("--golden-refresh"):
        head = f": origin: {fresh.origin}\n: request: {json.dumps(fresh.request)}\n\n"
        (_FOLDER / f"{name}.sse").write_bytes(head.encode() + fresh.stream)
    kept = read_capture(name)
    assert kept.request == fresh.request, "the capture is of another request: `--golden-refresh`"
    assert describe(fresh) == describe(kept), f"'{name}' is written otherwise than when it was captured"


def describe(capture: Capture) -> list[str]:
    """Its events, as they first come. Comments are left out: how many there are is a matter of time."""
    lines = capture.stream.decode().split("\n")
    kinds = [each.partition(":")[0] for each in lines if each and not each.startswith(("data: ", ":"))]
    told = dict.fromkeys(shape(event) for event in capture.events)
    return [*told, *sorted({f"a line '{each}:'" for each in kinds})]


def shape(value: Any) -> str:
    """Its keys, and the kinds of its values; a word that isn't sampled stays itself."""
    if is_object(value):
        inner = ((name, _fixed(name, one)) for name, one in sorted(value.items()))
        return "{" + ", ".join(f"{name}: {one}" for name, one in inner) + "}"
    if is_array(value):
        return "[" + ", ".join(shape(one) for one in value) + "]"
    kinds: dict[type, str] = {bool: "bool", int: "number", float: "number", str: "text", type(None): "null"}
    return value if value == "[DONE]" else kinds[type(value)]


def _fixed(name: str, value: Any) -> str:
    is_fixed = name in ("object", "role", "type", "finish_reason", "code")
    return repr(value) if is_fixed and not is_object(value) else shape(value)
