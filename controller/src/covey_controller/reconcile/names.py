"""Names of Instances: `<placement>-<lowest free ordinal>`. Identity is the instanceId; a name may be used again."""

from itertools import count

from covey_api.kinds import ObjectKey

from covey_controller.reconcile.draft import Draft


def lowest_free_name(draft: Draft, namespace: str, placement: str) -> str:
    """The first name that no Instance in the namespace has."""
    names = (f"{placement}-{ordinal}" for ordinal in count())
    keys = ((name, ObjectKey("Instance", namespace, name)) for name in names)
    return next(name for name, key in keys if key not in draft.sights and key not in draft.indexed.taken_names)


def ordinal_of(name: str) -> int:
    """The number at the end of an Instance's name; -1 if it has none (a name of older times)."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1
