"""The seal of an Instance: what only the controller can make, and what an agent must show to have one adopted.

An HMAC under the fleet secret over what identifies the Instance, all of which is stamped once. What may change later
(goal, attempt, term) is left out, and so is what a later version may add a field to: a seal outlives an upgrade on
either side. Why not a signature, or the whole spec: docs/adr/0009.
"""

import hmac
import json

from covey_api.instance import Instance
from covey_api.meta import DEFAULT_NAMESPACE

# Engines' keys come from the same secret, over bare instanceIds, which never begin like this.
_PURPOSE = "covey instance seal 1"


def seal_instance(fleet_secret: bytes, instance: Instance) -> str:
    """64 hex digits: the same for every goal, attempt and term of this Instance, and for no other one."""
    spec = instance.spec
    identity: list[object] = [
        _PURPOSE,
        spec.instance_id,
        instance.metadata.namespace or DEFAULT_NAMESPACE,
        instance.metadata.name,
        spec.placement,
        spec.model,
        spec.variant,
        spec.revision,
        spec.engine,
        spec.artifact.digest,
        [[member.name, member.node] for member in spec.members],
    ]
    if spec.companions:  # seals of Instances without any are those of versions that knew none
        identity.append([[each.role, each.artifact.digest] for each in spec.companions])
    if len(spec.members) > 1:
        identity.append([member.role for member in spec.members])
    return hmac.digest(fleet_secret, json.dumps(identity, separators=(",", ":")).encode(), "sha256").hex()
