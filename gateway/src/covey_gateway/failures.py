"""Why the gateway can't start or go on; the words are for a person."""

from typing import TypeVar


class StartError(Exception):
    """Nothing is served, or nothing may be: the process ends with these words."""


_Error = TypeVar("_Error", bound=Exception)


def flatten_errors(group: BaseExceptionGroup[_Error]) -> list[_Error]:
    """The errors of nested groups, in order; there is at least one."""
    found: list[_Error] = []
    for error in group.exceptions:
        found += flatten_errors(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
