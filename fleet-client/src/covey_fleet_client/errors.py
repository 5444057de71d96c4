"""The one error of this package: a kind for machines, words for people."""

from enum import StrEnum


class FleetErrorKind(StrEnum):
    UNREACHABLE = "Unreachable"
    """No whole answer in time: nobody there, a broken or silent stream, a busy controller. Trying again may help."""
    REFUSED = "Refused"
    """The controller took the call and says no to its content (other 4xx)."""
    DENIED = "Denied"
    """The controller doesn't take this token or certificate (401, 403), or the certificate has expired."""
    INVALID = "Invalid"
    """What came back is not what must (another authority, a line too long, an answer that doesn't parse), or can't be
    kept here."""


class FleetError(Exception):
    def __init__(self, kind: FleetErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
