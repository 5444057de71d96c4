"""All kinds, and the names that a person may type for each (`nodes` also means `cnodes` here)."""

from covey_api.access_key import AccessKey
from covey_api.fleet import Fleet
from covey_api.instance import Instance
from covey_api.kinds import Kind
from covey_api.model import Model
from covey_api.node import Node
from covey_api.placement import Placement

KINDS: dict[str, type[Kind]] = {kind.__name__: kind for kind in (Model, Placement, Node, Instance, Fleet, AccessKey)}
# What a user may write; Instances belong to the controller.
WRITABLE_KINDS = frozenset(KINDS) - {"Instance"}

_NAMES: dict[str, type[Kind]] = {
    name: kind
    for kind in KINDS.values()
    for name in (kind.PLURAL, kind.SINGULAR, kind.__name__.lower(), f"{kind.__name__.lower()}s", *kind.SHORT_NAMES)
}


def parse_kind(word: str) -> type[Kind]:
    """The kind that a plural, singular or short name means. ValueError lists what there is."""
    try:
        return _NAMES[word.lower()]
    except KeyError:
        known = ", ".join(sorted(kind.PLURAL for kind in KINDS.values()))
        raise ValueError(f"kind must be one of {known}; got '{word}'") from None
