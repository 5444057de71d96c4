"""AccessKeys of one hash: whose it was first keeps it, and nobody learns whose that is."""

from covey_api.access_key import AccessKey, AccessKeySpec
from covey_api.meta import ConditionStatus, ObjectMeta
from covey_api.reasons import AccessKeyReason
from kit import builders
from kit.worlds import Worldlet

HASH, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def key(namespace: str, name: str, month: int, key_hash: str = HASH, expiry: str | None = None) -> AccessKey:
    created = f"2026-{month:02d}-01T00:00:00Z" if month else ""
    metadata = ObjectMeta(
        name=name, namespace=namespace, uid=f"uid-{namespace}-{name}", generation=1, creation_timestamp=created
    )
    return AccessKey(metadata=metadata, spec=AccessKeySpec(hash=key_hash, expiry=expiry))


def run_with(*keys: AccessKey) -> Worldlet:
    story = Worldlet()
    story.put(builders.model(), builders.placement(), *keys)
    story.add_agents("a")
    story.run(15)
    return story


def taken(story: Worldlet) -> list[tuple[str, str]]:
    assert story.published.endpoints is not None
    return [(each.namespace, each.name) for each in story.published.endpoints.keys]


def conditions(story: Worldlet, of: AccessKey) -> dict[str, tuple[ConditionStatus, str, str]]:
    stored = story.objects[of.key]
    assert isinstance(stored, AccessKey)
    return {each.type: (each.status, each.reason, each.message) for each in stored.status.conditions}


def test_oldest_of_equal_keys_is_taken_and_the_others_are_stalled() -> None:
    old, young = key("zebra", "victim", 1), key("apple", "thief", 2, expiry="2020-01-01T00:00:00Z")
    same_place, other = key("zebra", "copy", 3), key("apple", "other", 3, OTHER)
    story = run_with(old, young, same_place, other)
    assert sorted(taken(story)) == [("apple", "other"), ("zebra", "victim")]
    for accepted in (old, other):
        assert set(conditions(story, accepted)) == {"Ready"}
        assert conditions(story, accepted)["Ready"][1] == AccessKeyReason.ACCEPTED
    for refused in (young, same_place):
        found = conditions(story, refused)
        assert found["Ready"][:2] == (ConditionStatus.FALSE, AccessKeyReason.HASH_CONFLICT)
        assert found["Stalled"][:2] == (ConditionStatus.TRUE, AccessKeyReason.HASH_CONFLICT)
        for _, _, message in found.values():
            assert "zebra" not in message
            assert "victim" not in message
    before = story.writes
    story.run(60)
    assert story.writes == before


def test_of_equally_old_ones_the_first_by_name_is_taken() -> None:
    assert taken(run_with(key("b", "a", 1), key("a", "b", 1), key("a", "c", 1))) == [("a", "b")]


def test_next_oldest_is_taken_once_the_oldest_is_gone() -> None:
    old, young = key("zebra", "victim", 1), key("apple", "next", 2)
    story = run_with(old, young)
    assert taken(story) == [("zebra", "victim")]
    del story.objects[old.key]
    story.run(15)
    assert taken(story) == [("apple", "next")]
    assert conditions(story, young)["Ready"][:2] == (ConditionStatus.TRUE, AccessKeyReason.ACCEPTED)
    assert set(conditions(story, young)) == {"Ready"}
