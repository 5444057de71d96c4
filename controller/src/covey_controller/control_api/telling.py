"""What nodes tell of Instances when a person asks: `logs` and `capture`."""

import asyncio
import secrets
from typing import Any

from covey_api.instance import Instance, Member
from covey_api.kinds import Kind
from covey_api.messages import Ask, AskKind
from covey_api.placement import Placement

from covey_controller.open_asks import TooManyAsks
from covey_controller.ports import Asker, Explainer
from covey_controller.serving.answers import ApiError, ApiReason

# Reading a log takes milliseconds; a capture also waits for the engine's metrics. A person waits no longer than this.
TELL_SECONDS = 15.0
# Of one Placement; each is one ask of one node.
MAX_INSTANCES = 16


async def tell(explainer: Explainer, asker: Asker, kind: AskKind, item: Kind) -> list[dict[str, Any]]:
    """`{instance, member, node, text, error}` each, by name. ApiError where the object has no engines."""
    instances = _instances_of(explainer, item)
    if len(instances) > MAX_INSTANCES:
        raise ApiError(
            400,
            ApiReason.BAD_REQUEST,
            f"{item.kind} '{item.metadata.name}' has {len(instances)} instances, and at most {MAX_INSTANCES} are asked "
            "at a time: name one, as `instance/NAME`",
        )
    members = [(instance, member) for instance in instances for member in instance.spec.members]
    return list(await asyncio.gather(*(_tell_one(asker, kind, instance, member) for instance, member in members)))


def _instances_of(explainer: Explainer, item: Kind) -> list[Instance]:
    if isinstance(item, Instance):
        return [item]
    if not isinstance(item, Placement):
        raise ApiError(
            400,
            ApiReason.BAD_REQUEST,
            f"only an Instance or a Placement has engines; got {item.kind} '{item.metadata.name}'",
        )
    found = [
        other
        for other in explainer.objects().values()
        if isinstance(other, Instance)
        and (other.metadata.namespace, other.spec.placement) == (item.metadata.namespace, item.metadata.name)
    ]
    return sorted(found, key=lambda instance: instance.metadata.name)


async def _tell_one(asker: Asker, kind: AskKind, instance: Instance, member: Member) -> dict[str, Any]:
    ask = Ask(
        id=f"{kind.lower()}-{secrets.token_hex(8)}",
        kind=kind,
        expires_seconds=TELL_SECONDS,
        instance_id=instance.spec.instance_id,
    )
    text, error = "", ""
    try:
        answer = await asker.ask(member.node, ask)
        text, error = answer.text, answer.error
    except TooManyAsks as refusal:
        error = str(refusal)
    except TimeoutError:
        error = (
            f"node '{member.node}' did not answer within {TELL_SECONDS:.0f} s. On the node itself the output is "
            f"'agent/members/{instance.spec.instance_id}/output.log' in its state folder"
        )
    return {
        "instance": f"{instance.metadata.namespace}/{instance.metadata.name}",
        "instanceId": instance.spec.instance_id,
        "member": member.name,
        "node": member.node,
        "text": text,
        "error": error,
    }
