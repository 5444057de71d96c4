"""The revision: a hash of what an Instance of a Placement would be made from, by spec.

It covers what people wrote, never what was computed from it (bytes, windows, lanes), so that an upgrade of Covey or a
new node rolls nothing. Fields equal to their defaults are left out, so that a new field with a default rolls nothing
either. Left out on purpose: `replicas`, `suspend`, `nodes` (an Instance that runs is not made better by another
choice), `rollout`, `timeouts`, metadata, and the Fleet's defaults (they apply to new Instances only).

Changing what is hashed rolls every fleet: raise RECIPE then, and say so in the changes. Golden hashes hold it.
"""

import hashlib
import json

from covey_api.engines import Task
from covey_api.model import Model
from covey_api.placement import Placement

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
    canonical = json.dumps(recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{RECIPE}-{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"
