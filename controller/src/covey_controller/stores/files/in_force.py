"""How a source puts its choice into the records, for whichever source it is: a folder or a repository."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from covey_api.kinds import ObjectKey

from covey_controller.stores.files.records import Records
from covey_controller.stores.files.rest import Choice

T = TypeVar("T")


class Leadership(Protocol):
    """One holding of the lease, with the records that it may write."""

    def is_lost(self) -> bool: ...
    async def on_records(self, work: Callable[[Records], T]) -> T:
        """Run `work` in the records' thread. LeaseLost when this holding has ended."""
        ...


def store_choice(choice: Choice, deleted: frozenset[ObjectKey], records: Records) -> tuple[bool, str]:
    """Whether any object changed, and the set that is in force now."""
    has_changed = records.put_in_force(choice)
    nodes = [key for key in deleted if key in records.objects]
    return records.mark_deleted(nodes) or has_changed, records.applied


def list_deletable(records: Records) -> frozenset[ObjectKey]:
    """What may be deleted by name besides documents: what lost its document and still runs, and machines."""
    return records.documented | {key for key in records.objects if key.kind == "Node"}
