"""Versions that are pinned, and what builds can do: a filter with its reason, of the build that would be started."""

import pytest
from covey_api.companion import CompanionRole
from covey_api.engines import EngineName, Lane, LaneBuild, LaneState, Task
from covey_api.instance import MemberRole
from covey_api.reasons import RefusalReason
from covey_api.runtime import LlamaServerRuntime, Runtime
from covey_planner.choice import choose, explain_nodes
from covey_planner.choice.builds import pin_lane
from covey_planner.choice.links import unknown_links
from covey_planner.choice.roster import Roster
from covey_planner.types import CompanionView, NodeView, Refusal, ShapeKind, Spread, Wish
from kit.builders import artifact, geometry, lane
from kit.planning import GIB, node, variant, wish

OWN, OTHER = "10434", "10092"
RERANKS = wish(task=Task.RERANK)


def managed(**other: object) -> Lane:
    """A lane whose own build has no reranking, with another version beside it."""
    build = LaneBuild.model_validate({"version": OTHER, "state": LaneState.INSTALLED, "digest": "1" * 64} | other)
    return lane(digest="0" * 64, versions=(OWN, OTHER), lacks_features=("--reranking",), builds=(build,))


def refusal(asked: Wish, refused: NodeView) -> Refusal:
    decision = choose(asked, [refused], 1)
    assert decision.chosen == ()
    assert decision.closest is not None
    assert explain_nodes(asked, [refused]) == (decision.closest,)
    assert decision.closest.reason is RefusalReason.NO_USABLE_ENGINE
    return decision.closest


def test_a_build_without_the_flag_is_passed_for_one_that_has_it() -> None:
    words = "its LlamaServer 10434 has no `--reranking`, which variant 'gguf-q4-1' needs; give it a newer build"
    assert refusal(RERANKS, node(lanes=(managed(),))).message == words
    assert len(choose(wish(), [node(lanes=(managed(),))], 1).chosen) == 1
    both = [node("a", lanes=(managed(),)), node("b", lanes=(lane(digest="0" * 64),))]
    assert [each.node for each in choose(RERANKS, Roster(both), 2).chosen] == ["b", "b"]


def test_a_pin_is_not_barred_by_what_only_the_own_build_lacks() -> None:
    pinned = node(lanes=(pin_lane(managed(), OTHER),))
    (chosen,) = choose(RERANKS, [pinned], 1).chosen
    assert (chosen.lane.version, chosen.lane.digest, chosen.lane.state) == (OTHER, "1" * 64, LaneState.INSTALLED)


def test_a_pin_is_not_let_through_by_what_only_the_own_build_has() -> None:
    own = lane(versions=(OWN, OTHER), builds=(managed(lacks=("llama",), lacks_features=("--poll",)).builds))
    assert len(choose(wish(), [node(lanes=(own,))], 1).chosen) == 1
    words = "its LlamaServer 10092 has no code for architecture 'llama'; give it a newer build"
    assert refusal(wish(), node(lanes=(pin_lane(own, OTHER),))).message == words
    polls = variant(runtime=Runtime(llama_server=LlamaServerRuntime(poll_percent=50)))
    lacks_flag = own.changed(builds=managed(lacks_features=("--poll",)).builds)
    assert (
        "10092 has no `--poll`" in refusal(wish(variants=(polls,)), node(lanes=(pin_lane(lacks_flag, OTHER),))).message
    )


def test_a_version_that_the_agent_does_not_know_is_refused_in_words() -> None:
    own = lane(versions=(OWN, OTHER))
    words = (
        "LlamaServer 7 is pinned, and its agent can install 10434 or 10092; correct `spec.engines[].version` of the "
        "Node or the Fleet"
    )
    pinned = node("a", lanes=(pin_lane(own, "7"),))
    assert refusal(wish(), pinned).message == words
    assert [each.node for each in choose(wish(), Roster([pinned, node("b", lanes=(own,))]), 2).chosen] == ["b", "b"]


@pytest.mark.parametrize("version", ["", OWN])
def test_what_is_pinned_to_nothing_or_to_its_own_is_the_very_same_lane(version: str) -> None:
    own = managed()
    assert pin_lane(own, version) is own


def test_a_program_of_the_operators_is_what_it_is() -> None:
    own = lane(version="b1")
    assert pin_lane(own, OTHER) is own


def test_of_an_older_agent_nothing_is_known_of_the_pinned_version() -> None:
    pinned = pin_lane(lane(versions=(OWN, OTHER), lacks=("llama",)), OTHER)
    assert (pinned.state, pinned.lacks) == (LaneState.INSTALLABLE, ())
    assert len(choose(wish(), [node(lanes=(pinned,))], 1).chosen) == 1


def test_companions_need_what_starts_them() -> None:
    beside = (CompanionView(CompanionRole.DRAFT, geometry(), artifact()),)
    able = lane(companions=tuple(CompanionRole), lacks_features=("--model-draft", "--spec-type"))
    words = refusal(wish(variants=(variant(companions=beside),)), node(lanes=(able,))).message
    assert "has no `--model-draft`, `--spec-type`, which variant" in words


def test_members_of_a_group_are_of_one_build_as_it_is_pinned() -> None:
    roles = (MemberRole.DRIVER.value, MemberRole.DONOR.value)
    own = managed(roles=roles).changed(roles=roles, lacks_features=())
    asked = wish(spread=Spread(2, 2, is_asked=True, kind=ShapeKind.RPC))

    def places(*lanes: Lane) -> list[tuple[str, str]]:
        views = [node(name, lanes=(each,)) for name, each in zip("abc", lanes, strict=False)]
        chosen = choose(asked, Roster(views, (), unknown_links), 1).chosen
        return [(name, chosen[0].lane.version) for name, _ in chosen[0].places] if chosen else []

    older = pin_lane(own, OTHER)
    assert places(own, older) == []
    assert places(older, own, older) == [("a", OTHER), ("c", OTHER)]
    without = pin_lane(own.changed(builds=managed().builds), OTHER)
    assert places(without, without) == [], "the pinned build has no donors' program"


def test_a_locked_group_says_what_its_build_lacks() -> None:
    roles = (MemberRole.DRIVER.value, MemberRole.DONOR.value)
    lacking = lane(roles=roles, lacks=("llama",))
    asked = wish(spread=Spread(2, 2, is_asked=True, kind=ShapeKind.RPC, lock=("a", "b")))
    decision = choose(asked, Roster([node("a", lanes=(lacking,)), node("b", lanes=(lane(roles=roles),))]), 1)
    assert decision.closest is not None
    assert "'a' (its LlamaServer 10434 has no code for architecture 'llama'" in decision.closest.message


def test_other_engines_have_no_flags_that_are_asked_for() -> None:
    polls = Runtime(llama_server=LlamaServerRuntime(poll_percent=50))
    other = lane(engine=EngineName.LLAMA_CPP, lacks_features=("--poll",))
    asked = wish(variants=(variant(engines=(EngineName.LLAMA_CPP,), runtime=polls),))
    assert len(choose(asked, [node(lanes=(other,), memory=64 * GIB)], 1).chosen) == 1
