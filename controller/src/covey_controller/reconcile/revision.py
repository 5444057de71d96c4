"""The revision: a hash of what an Instance of a Placement would be made from, by spec.

It covers what people wrote, never what was computed from it (bytes, windows, lanes), so that an upgrade of Covey or a
new node rolls nothing. Fields equal to their defaults are left out, so that a new field with a default rolls nothing
either. Left out on purpose: `replicas`, `suspend`, `nodes` (an Instance that runs is not made better by another
choice), `rollout`, `timeouts`, metadata but for the annotation `covey.dev/restart`, and the Fleet's defaults (they
apply to new Instances only).

Changing what is hashed rolls every fleet: raise RECIPE then, and say so in the changes. Golden hashes hold it.
"""

import hashlib
import json

from covey_api.engines import Task
from covey_api.meta import RESTART_ANNOTATION
from covey_api.model import Model
from covey_api.placement import Placement
from covey_api.trust import Proof

RECIPE = "r1"
_MODEL_FIELDS = {"context_tokens", "variants", "geometry", "memory"}
_PLACEMENT_FIELDS = {"model_ref", "engines", "context", "concurrency", "kv_cache", "shape"}


def revision_of(placement: Placement, model: Model) -> str:
    """`r1-` and 12 hex digits."""
    recipe = {
        "model": model.spec.model_dump(mode="json", by_alias=True, include=_MODEL_FIELDS, exclude_defaults=True),
        "placement": placement.spec.model_dump(
            mode="json", by_alias=True, include=_PLACEMENT_FIELDS, exclude_defaults=True
        ),
    }
    if model.spec.tasks[0] is not Task.CHAT:  # what its engine is started for
        recipe["task"] = {"name": model.spec.tasks[0].value}
    if model.spec.trust.requires is Proof.SIGNATURE:  # what its files must be signed by, before an engine gets them
        recipe["trust"] = model.spec.trust.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if restart := placement.metadata.annotations.get(RESTART_ANNOTATION):
        recipe["restart"] = {"value": restart}
    canonical = json.dumps(recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{RECIPE}-{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"
