"""An upgrade of the CRDs takes whatever the last release took, and means the same by it.

`tests/golden/files/crds-released/` holds the CRDs of the last release; they are replaced when one is made. What may
differ all the same is listed here with its reason.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from covey_api.companion import MODEL_RULES, VARIANT_RULE, VOUCHED
from covey_api.instance import STAMPED
from covey_api.model import LOADS_RULE
from covey_api.registry import KINDS
from covey_api.schema import RULES, JsonSchema, render_crd
from covey_api.source import SOURCE_PATTERN
from covey_api.trust import SIGNATURE_RULE, TRUST_RULE

RELEASED = Path(__file__).resolve().parents[2] / "golden" / "files" / "crds-released"
# "models.covey.dev: spec.field: what differs": why nobody is hurt by it.
_STAMPED_ONCE = " && ".join(f"self.{name} == oldSelf.{name}" for name in STAMPED)
REASONS: dict[str, str] = {
    f"instances.covey.dev: .spec: rule {_STAMPED_ONCE} is new": "only controllers write Instances, and none did",
    "cnodes.covey.dev: .spec: rule !has(self.taints) || self.taints.all(t, self.taints.exists_one(u, u.key == t.key))"
    " is new": "it is about a new field alone",
    "fleets.covey.dev: .spec: rule !has(self.engines) || self.engines.all(e, self.engines.exists_one(f, f.engine == "
    "e.engine)) is new": "it is about a new field alone",
    f"models.covey.dev: .spec.variants[]: rule {VARIANT_RULE[0]} is new": "it is about new fields alone",
    **{
        f"models.covey.dev: .spec: rule {rule} is new": "it is about new fields and a new task"
        for rule, _ in MODEL_RULES
    },
    f"models.covey.dev: .spec: rule {TRUST_RULE[0]} is new": "it is about a new field alone",
    f"models.covey.dev: .spec: rule {SIGNATURE_RULE[0]} is new": "it is about a new field alone",
    f"models.covey.dev: .spec.variants[]: rule {LOADS_RULE} is new": "the one pair that there was fulfils it",
    f"models.covey.dev: .spec.variants[]: rule {VOUCHED[0]} is new": "it is about new sources alone",
    f"models.covey.dev: .spec.variants[].source: rule self.matches(r'{SOURCE_PATTERN}') is new": "it takes more",
}
_LOWER = ("minimum", "minLength", "minItems")
_UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")


def find_narrowings(old: JsonSchema, new: JsonSchema, path: str) -> Iterator[str]:
    """What a document that the old schema takes could meet in the new one.

    A default that is said in words alone now is filled in where a document is read, so it means the same.
    """
    if old.get("type") != new.get("type"):
        yield f"{path}: type {old.get('type')} became {new.get('type')}"
        return
    said = f"Default: {json.dumps(old.get('default'))}."
    if old.get("default") != new.get("default") and not new.get("description", "").endswith(said):
        yield f"{path}: default {old.get('default')!r} became {new.get('default')!r}"
    for name in sorted({*new.get("required", [])} - {*old.get("required", [])}):
        yield f"{path}: '{name}' became required"
    for keyword in (*_LOWER, *_UPPER):
        if keyword in new and _is_tighter(keyword, old.get(keyword), new[keyword]):
            yield f"{path}: {keyword} {old.get(keyword)} became {new[keyword]}"
    if "enum" in new and (gone := [it for it in old.get("enum", ["anything"]) if it not in new["enum"]]):
        yield f"{path}: {gone} can't be chosen any more"
    if new.get("pattern", old.get("pattern")) != old.get("pattern"):
        yield f"{path}: pattern {old.get('pattern')} became {new['pattern']}"
    for rule in {it["rule"] for it in new.get(RULES, [])} - {it["rule"] for it in old.get(RULES, [])}:
        yield f"{path}: rule {rule} is new"
    yield from _find_narrowings_below(old, new, path)


def _find_narrowings_below(old: JsonSchema, new: JsonSchema, path: str) -> Iterator[str]:
    for name, child in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{path}.{name}: is gone"
        else:
            yield from find_narrowings(child, new["properties"][name], f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in old:
            yield from find_narrowings(old[keyword], new[keyword], f"{path}[]")


def _is_tighter(keyword: str, old: int | None, new: int) -> bool:
    if old is None:
        return True
    return new > old if keyword in _LOWER else new < old


def schema_of(crd: dict[str, Any]) -> JsonSchema:
    (version,) = crd["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("path", sorted(RELEASED.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_upgrade_takes_what_the_last_release_took(path: Path) -> None:
    released = yaml.safe_load(path.read_text(encoding="utf-8"))
    (kind,) = (kind for kind in KINDS.values() if released["spec"]["names"]["plural"] == kind.PLURAL)
    now = render_crd(kind)
    name = now["metadata"]["name"]
    assert (released["metadata"]["name"], released["spec"]["scope"]) == (name, now["spec"]["scope"])
    assert {*released["spec"]["names"].get("shortNames", [])} <= {*now["spec"]["names"].get("shortNames", [])}
    found = {f"{name}: {text}" for text in find_narrowings(schema_of(released), schema_of(now), "")}
    assert found - REASONS.keys() == set()


def test_every_kind_of_the_last_release_is_there() -> None:
    assert {path.stem for path in RELEASED.glob("*.yaml")} <= {f"{kind.PLURAL}.covey.dev" for kind in KINDS.values()}


OLD: JsonSchema = {
    "type": "object",
    "required": ["a"],
    "properties": {
        "a": {"type": "string", "maxLength": 5, "pattern": "^a"},
        "b": {"type": "integer", "minimum": 1, "default": 2},
        "c": {"type": "array", "maxItems": 3, "items": {"type": "string", "enum": ["X", "Y"]}},
    },
}


@pytest.mark.parametrize(
    ("field", "change", "found"),
    [
        ("a", {"maxLength": 4}, ".a: maxLength 5 became 4"),
        ("a", {"pattern": "^b"}, ".a: pattern ^a became ^b"),
        ("a", {"minLength": 1}, ".a: minLength None became 1"),
        ("a", {RULES: [{"rule": "self != 'x'", "message": "no"}]}, ".a: rule self != 'x' is new"),
        ("b", {"default": 3}, ".b: default 2 became 3"),
        ("b", {"minimum": 2}, ".b: minimum 1 became 2"),
        ("b", {"type": "string"}, ".b: type integer became string"),
        ("c", {"items": {"type": "string", "enum": ["X"]}}, ".c[]: ['Y'] can't be chosen any more"),
    ],
)
def test_narrower_fields_are_found(field: str, change: JsonSchema, found: str) -> None:
    properties = OLD["properties"] | {field: OLD["properties"][field] | change}
    assert [*find_narrowings(OLD, OLD | {"properties": properties}, "")] == [found]


def test_fields_that_are_gone_or_became_required_are_found_and_wider_ones_are_not() -> None:
    assert [*find_narrowings(OLD, OLD | {"required": ["a", "b"]}, "")] == [": 'b' became required"]
    assert [*find_narrowings(OLD, OLD | {"properties": {"a": OLD["properties"]["a"]}}, "")] == [
        ".b: is gone",
        ".c: is gone",
    ]
    wider = {"a": {"type": "string", "maxLength": 9}, "d": {"type": "string"}} | {
        name: OLD["properties"][name] for name in ("b", "c")
    }
    assert [*find_narrowings(OLD, {"type": "object", "properties": wider}, "")] == []
