"""What a keeper is told of other nodes: how its front listens, and the other members of its attempt."""

from dataclasses import dataclass
from pathlib import Path

from covey_api.messages import MemberDoor, render_member_name
from covey_api.reasons import FailureCause

from covey_agent.ports import AgentError, Group


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """How keepers listen for gateways of other machines. `identity`: the folder of the node's key and certificates."""

    address: str
    identity: Path


def require_front(settings: FrontSettings | None) -> FrontSettings:
    """AgentError where this node has no address that others reach."""
    if settings is None:
        raise AgentError(
            FailureCause.EXITED,
            "a member of several needs an address that other nodes reach: give the agent one with `--address`",
        )
    return settings


def render_group(instance_id: str, attempt: int, group: Group, settings: FrontSettings | None) -> dict[str, object]:
    """The launch's `group`. AgentError where this node has no address that others reach."""
    identity = require_front(settings).identity

    def names(member: str) -> dict[str, str]:
        return {
            "streamName": render_member_name(instance_id, attempt, member, MemberDoor.STREAM),
            "linkName": render_member_name(instance_id, attempt, member, MemberDoor.LINK),
        }

    return {
        **names(group.member),
        "identity": str(identity),
        "formSeconds": group.form_seconds,
        "ringPort": group.ring_port,
        "frontPort": group.front_port,
        "answers": group.answers,
        "lostStatus": group.lost_status,
        "stuckStatus": group.stuck_status,
        "stepSeconds": group.step_seconds,
        "admits": [{"member": each.member, "node": each.node} for each in group.admits],
        "dials": [
            {
                **names(each.member),
                "member": each.member,
                "node": each.node,
                "address": each.address,
                "port": each.port,
                "localPort": each.local_port,
            }
            for each in group.dials
        ],
    }
