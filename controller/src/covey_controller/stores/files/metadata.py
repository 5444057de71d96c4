"""What Kubernetes holds of ObjectMeta, as a schema: no CRD describes it, and files mode must refuse the same.

Server-owned fields (`uid`, `resourceVersion`, `managedFields`, …) are allowed, so that what `kubectl get -o yaml`
printed can be a file, and are then ignored.
"""

from typing import Any

from covey_api.meta import LABEL_VALUE_PATTERN

# A DNS label, or nothing: the default, and what Covey prints for cluster-scoped kinds.
NAMESPACE_PATTERN = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"
# A qualified name: an optional DNS subdomain and `/`, then up to 63 letters, digits, `-`, `_`, `.`.
LABEL_KEY_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
_KEYS = {"pattern": LABEL_KEY_PATTERN, "maxLength": 317}


def render_metadata_schema(name: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of `metadata` in a document. `name` is what the kind's own CRD demands of the name."""
    text = {"type": "string"}
    return {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": name,
            "namespace": {"type": "string", "pattern": NAMESPACE_PATTERN, "maxLength": 63},
            "labels": {
                "type": "object",
                "propertyNames": _KEYS,
                "additionalProperties": {"type": "string", "pattern": LABEL_VALUE_PATTERN, "maxLength": 63},
            },
            "annotations": {
                "type": "object",
                "propertyNames": _KEYS,
                # Kubernetes bounds all annotations of an object together by this.
                "additionalProperties": {"type": "string", "maxLength": 262_144},
            },
            "generateName": text,
            "uid": text,
            "resourceVersion": text,
            "selfLink": text,
            "creationTimestamp": text,
            "deletionTimestamp": text,
            "generation": {"type": "integer"},
            "deletionGracePeriodSeconds": {"type": "integer"},
            "finalizers": {"type": "array", "items": text},
            "ownerReferences": {"type": "array", "items": {"type": "object"}},
            "managedFields": {"type": "array", "items": {"type": "object"}},
        },
    }
