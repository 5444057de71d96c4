"""How what Kubernetes calls by a name is called in Covey: pure, the same in every part, for ever.

Names of nodes and pods may hold dots and be 253 characters long; Covey's are DNS labels of at most 53, since they are
parts of other names. Rejected: wider names (Instances, member folders and socket paths would have to carry them), and
cutting alone (`node-1.east…` and `node-1.west…` would be one).
"""

import hashlib
import re

from covey_api.meta import MAX_NAME_LENGTH, NAME_PATTERN

_NAME = re.compile(NAME_PATTERN)
# A DNS subdomain.
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_KUBERNETES_LENGTH = 253
# 32 bits: of a thousand names that begin alike, two get the same one in one of 8,600 clusters.
_DIGEST_LENGTH = 8


def render_covey_name(name: str) -> str:
    """The name itself if Covey's may be so. Else its characters with dots as '-', cut, and a digest of the whole.

    What can't be a name in Kubernetes either stays as it is, and is refused where it is used.
    """
    is_name = _NAME.fullmatch(name) is not None and len(name) <= MAX_NAME_LENGTH
    if is_name or not _KUBERNETES_NAME.fullmatch(name) or len(name) > _MAX_KUBERNETES_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    readable = name.replace(".", "-")[: MAX_NAME_LENGTH - _DIGEST_LENGTH - 1].strip("-")
    return f"{readable}-{digest}"
