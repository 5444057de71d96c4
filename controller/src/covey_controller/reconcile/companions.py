"""Which header belongs where: a file that is no projector can't be one, and a projector is no model. Pure."""

from covey_api.companion import PROJECTOR_ARCHITECTURE, CompanionRole
from covey_api.model import CompanionStatus, Geometry, Model, Variant


def explain_misfit(role: CompanionRole | None, geometry: Geometry) -> str:
    """Why a file with this header is not what it is named for; empty: it may be. `role` None: the model itself."""
    is_projector = geometry.architecture == PROJECTOR_ARCHITECTURE
    if role is CompanionRole.PROJECTOR and not is_projector:
        found = f"architecture '{geometry.architecture}'"
        return f"`projector` must name a projector (`mmproj`, architecture '{PROJECTOR_ARCHITECTURE}'); got {found}"
    if role is not CompanionRole.PROJECTOR and is_projector:
        field = "`draft`" if role else "`source`"
        return f"{field} must name a model; got a projector (`mmproj`), which is named by `projector`"
    return ""


def find_companion(model: Model, variant: Variant, role: CompanionRole) -> CompanionStatus | None:
    """What a node read of this companion; None when it was read from another source or digest, or never."""
    named = dict(variant.companions).get(role)
    read = (each for status in model.status.variants if status.name == variant.name for each in status.companions)
    for each in read:
        if named is None or each.role is not role or each.source != named.source:
            continue
        return None if each.artifact and named.sha256 not in (None, each.artifact.sha256) else each
    return None
