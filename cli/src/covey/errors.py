"""How a command ends: the exit codes, and one exception that carries code and words."""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    WRONG_USE = 2
    NOTHING_MATCHED = 3
    TIMED_OUT = 4


class CommandError(Exception):
    """Ends the command with a code; the message goes to standard error as it is."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
