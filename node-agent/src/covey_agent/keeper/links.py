"""The link between the keepers of two members of one attempt: each hears at once when the other ends.

An open TLS connection on which both say a line a second: an empty one, or as the last `end WORDS`, of its own end, or
`for WORDS`, when it ends for another member's, whose the words are: whoever hears those adds from whom, since a keeper
can say anything of others. `wait` says that this engine, a rank, ended since a step with the others took too long:
theirs do the same, but for the one that stands still, whose keeper then tells its end.
What ends the link ends the attempt: those words, a connection that closes (somebody killed that keeper, or its machine
went down), silence.
Nothing here asks the agent or the controller: they may be away.
"""

import contextlib
import selectors
import time
from collections.abc import Callable

from covey_agent.keeper.sides import Side
from covey_agent.keeper.ways import Watch

PING_SECONDS = 1.0
# Four lines lost, and the fifth late. A machine that is asleep or cut off can't be told from one that is gone.
SILENCE_SECONDS = 5.0
# One line; more without its end is no word of ours.
MAX_LINE_BYTES = 1024
# Letters of what is passed on of another: who told it must not be cut off with the end of a long message.
MAX_HEARSAY = 600
CLOSED = "closed its link without a word: its keeper or its machine ended"


class MembersLink:
    """With the member that `words` names. `on_end` hears once, in a sentence, whose end ends this one.

    `hears_on`: also when this member has told of its end. An engine that dials others may end by an end of theirs, of
    which their own word is on its way still; what else comes then is their answer.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        peer: Side,
        words: str,
        on_end: Callable[[str], None],
        *,
        hears_on: bool = False,
        on_wait: Callable[[str], None] = lambda _words: None,
    ) -> None:
        self._words = words
        self.has_heard = False
        """Whether the other keeper has said anything, so took this connection for a link."""
        self._peer = peer
        self._on_end = on_end
        self._on_wait = on_wait
        self._hears_on = hears_on
        self._has_told = False
        self._is_over = False
        self._is_closed = False
        self._unread = b""
        self._heard = self._said = time.monotonic()
        self._watch = Watch(selector, self.advance)

    def begin(self) -> None:
        """Once. What came in one record with the end of the handshake is nothing that the selector knows of."""
        try:
            self._say(b"\n")
        except OSError:
            self._end(CLOSED)
        self.advance()

    def advance(self) -> None:
        """The socket is ready."""
        if self._is_closed:
            return
        try:
            self._peer.flush()
            self._read()
        except OSError:
            self._end(CLOSED)
            return
        except Exception:
            self._end("is not understood")
            raise
        if not self._is_closed:
            self._watch.set(self._peer.socket, reads=not self._peer.has_ended, writes=self._peer.is_full)

    def check(self, now: float) -> None:
        """Once a second at least."""
        if self._is_over or self._has_told:
            return
        if now - self._heard >= SILENCE_SECONDS:
            self._end(f"said nothing for {SILENCE_SECONDS:.0f} s")
        elif now - self._said >= PING_SECONDS:
            try:
                self._say(b"\n")
            except OSError:
                self._end(CLOSED)

    def tell_wait(self) -> None:
        """This engine waited for the others in vain."""
        if not self._is_over and not self._has_told:
            with contextlib.suppress(OSError):  # then it is heard at the next look
                self._say(b"wait\n")

    def tell_end(self, words: str, *, is_own: bool) -> None:
        """This member ends. The socket stays until the other end closes: to close over unread bytes would take the
        last line back."""
        if self._is_over or self._has_told:
            return
        self._has_told = True
        try:
            self._say(f"{'end' if is_own else 'for'} {words}".encode()[: MAX_LINE_BYTES - 1] + b"\n")
            self._peer.end()
        except OSError:
            self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = self._is_over = True
            self._watch.drop(self._peer.socket)

    def _say(self, line: bytes) -> None:
        """Unless what was said before is on its way still: then the other end reads nothing, and silence ends it."""
        if not self._peer.is_full:
            self._said = time.monotonic()
            self._peer.send(line)

    def _read(self) -> None:
        received = self._peer.receive()
        if received:
            self.has_heard, self._heard = True, time.monotonic()
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            if line == b"wait" and not self._is_over and not self._has_told:
                self._on_wait(self._words)
            if line.startswith((b"end ", b"for ")):
                words = line[4:MAX_LINE_BYTES].decode(errors="replace")
                plain = "".join(letter if letter.isprintable() else "?" for letter in words)
                is_own = line.startswith(b"end")
                self._end(plain, is_own=is_own, is_news=is_own and self._hears_on)
        if len(self._unread) > MAX_LINE_BYTES:
            self._end("said what is no word of a link")
        if self._peer.has_ended:
            self._end(CLOSED)

    def _end(self, why: str, *, is_own: bool = True, is_news: bool = False) -> None:
        is_known = self._is_over or (self._has_told and not is_news)
        self.close()
        if not is_known:
            self._on_end(f"{self._words} {why}" if is_own else f"{why[:MAX_HEARSAY]} (heard from {self._words})")
