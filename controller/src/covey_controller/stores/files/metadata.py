"""What Kubernetes holds of ObjectMeta, as a schema: no CRD describes it, and files mode must refuse the same.

Server-owned fields (`uid`, `resourceVersion`, `managedFields`, …) are allowed, so that what `kubectl get -o yaml`
printed can be a file, and are then ignored.
"""

from typing import Any, cast

from covey_api.meta import LABEL_VALUE_PATTERN
from covey_api.schema import JsonSchema

# A DNS label, or nothing: the default, and what Covey prints for cluster-scoped kinds.
NAMESPACE_PATTERN = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"
# A qualified name: an optional DNS subdomain and `/`, then up to 63 letters, digits, `-`, `_`, `.`.
LABEL_KEY_PATTERN = (
    r"^((?=[^/]{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
# Kubernetes takes capitals in the subdomain of an annotation.
ANNOTATION_KEY_PATTERN = (
    r"^((?=[^/]{1,253}/)[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
# The beginning of a DNS subdomain, or nothing.
PREFIX_PATTERN = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*-?)?$"
TIME_PATTERN = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.,][0-9]+)?"
    r"(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
# Kubernetes bounds all annotations of an object together, keys and values.
MAX_ANNOTATION_BYTES = 262_144


def render_metadata_schema(name: JsonSchema, *, namespaced: bool) -> JsonSchema:
    """JSON schema of `metadata` in a document. `name` is what the kind's own CRD demands of the name.

    The API server drops the namespace of a cluster-scoped object without a look at it.
    """
    text: JsonSchema = {"type": "string"}
    given = {"type": "string", "minLength": 1}
    namespace = {"pattern": NAMESPACE_PATTERN, "maxLength": 63} if namespaced else {}
    return {
        "type": "object",
        "default": {},
        "required": ["name"],
        "properties": {
            "name": name,
            "namespace": text | namespace,
            "labels": {
                "type": "object",
                "propertyNames": {"pattern": LABEL_KEY_PATTERN},
                "additionalProperties": {"type": "string", "pattern": LABEL_VALUE_PATTERN, "maxLength": 63},
            },
            "annotations": {
                "type": "object",
                "propertyNames": {"pattern": ANNOTATION_KEY_PATTERN},
                "additionalProperties": text,
            },
            "generateName": text | {"pattern": PREFIX_PATTERN, "maxLength": 253},
            "uid": text,
            "resourceVersion": text,
            "selfLink": text,
            "creationTimestamp": text | {"pattern": TIME_PATTERN},
            "deletionTimestamp": text | {"pattern": TIME_PATTERN},
            "generation": {"type": "integer"},
            "deletionGracePeriodSeconds": {"type": "integer"},
            "finalizers": {"type": "array", "items": text | {"pattern": LABEL_KEY_PATTERN}},
            "ownerReferences": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["apiVersion", "kind", "name", "uid"],
                    "properties": {
                        "apiVersion": given,
                        "kind": given,
                        "name": given,
                        "uid": given,
                        "controller": {"type": "boolean"},
                        "blockOwnerDeletion": {"type": "boolean"},
                    },
                },
            },
            "managedFields": {"type": "array", "items": {"type": "object"}},
        },
    }


def count_annotation_bytes(document: dict[str, Any]) -> int:
    """Bytes of all annotations, as Kubernetes counts them; zero where they have another shape."""
    metadata: Any = document.get("metadata")
    annotations: Any = cast("dict[str, Any]", metadata).get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict):
        return 0
    pairs = cast("dict[str, Any]", annotations).items()
    return sum(len(key.encode()) + len(value.encode()) for key, value in pairs if isinstance(value, str))
