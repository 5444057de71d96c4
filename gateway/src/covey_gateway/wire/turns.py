"""Steps put in turn, for formats that tell one block after the other.

Engines that read several tool calls at once may write pieces of them by turns. Who has told the end of a block can't
go back to it, so what begins while a call is open waits until that is over: its arguments are a whole object, or the
answer has ended. Of calls that follow one another, as engines write most of them, none waits.
"""

import msgspec

from covey_gateway.wire.body import is_object
from covey_gateway.wire.steps import CallBegun, CallGrew, Finished, Said, Step, Thought


class Turns:
    def __init__(self) -> None:
        self._open: int | None = None
        """Ordinal of the call that is told now."""
        self._arguments: list[str] = []
        """Of that one."""
        self._waiting: list[list[Step]] = []
        """Blocks in their order, each with its steps."""

    def order(self, steps: list[Step]) -> list[Step]:
        """What may be told now."""
        told: list[Step] = []
        for step in steps:
            match step:
                case Finished():
                    told += [*self.end(), step]
                case CallGrew(ordinal, arguments):
                    self._grow(step, ordinal, arguments, told)
                case Thought() | Said() | CallBegun():
                    self._begin(step)
                    self._go_on(told)
        return told

    def end(self) -> list[Step]:
        """All that waits: nothing grows any more."""
        told = [step for block in self._waiting for step in block]
        self._waiting, self._open = [], None
        return told

    def _begin(self, step: Step) -> None:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and type(step) is type(last[0]) and not isinstance(step, CallBegun):
            last.append(step)
        else:
            self._waiting.append([step])

    def _grow(self, step: Step, ordinal: int, arguments: str, told: list[Step]) -> None:
        if ordinal == self._open:
            self._arguments.append(arguments)
            told.append(step)
            self._go_on(told)
            return
        for block in self._waiting:
            if isinstance(block[0], CallBegun) and block[0].ordinal == ordinal:
                block.append(step)
                return
        if arguments.strip():  # blanks after a whole object are no more of it
            told.append(step)

    def _go_on(self, told: list[Step]) -> None:
        while self._waiting and (self._open is None or _is_whole(self._arguments)):
            block = self._waiting.pop(0)
            told += block
            begun = block[0]
            self._open = begun.ordinal if isinstance(begun, CallBegun) else None
            self._arguments = [step.arguments for step in block if isinstance(step, CallGrew)]


def _is_whole(arguments: list[str]) -> bool:
    if not arguments or not arguments[-1].rstrip().endswith("}"):
        return False
    try:
        return is_object(msgspec.json.decode("".join(arguments)))
    except (msgspec.DecodeError, RecursionError):
        return False
