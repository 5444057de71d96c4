"""An engine's answer as it nearly always comes, by bytes: a head of an event stream, chunks that end with events.

Whatever differs isn't judged here but left to the parser, which has read nothing of it then: a head with a length, an
answer of another status, an extension of a chunk, a trailer, bytes after the end.
"""

HEAD_END = b"\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
"""What `is_stream_head` takes, for a parser that joins later."""
END = b"0\r\n\r\n"

# A size has eight digits at most: of a longer chunk nobody keeps the beginning in memory.
_MAX_DIGITS = 8
_HEX = b"0123456789abcdefABCDEF"


def is_stream_head(head: bytes) -> bool:
    """Whether this is the head of chunked events on a connection that stays, and nothing else. With its empty line."""
    lower = head.lower()
    return (
        head.startswith(b"HTTP/1.1 200 ")
        and b"\r\ncontent-type: text/event-stream" in lower
        and b"\r\ntransfer-encoding: chunked\r\n" in lower
        and lower.count(b"transfer-encoding") == 1
        and b"content-length" not in lower
        and b"upgrade" not in lower
        and (b"\r\nconnection:" not in lower or b"\r\nconnection: keep-alive\r\n" in lower)
        and lower.count(b"connection:") <= 1
        and b"\n " not in lower
        and b"\n\t" not in lower
        and lower.count(b"\n") == lower.count(b"\r") == lower.count(b"\r\n")
    )


Frames = tuple[bytes, int, bool]
"""Whole chunks: what they carry; how many bytes they are, behind which is the beginning of one; whether the last one of
the answer is behind them, and nothing behind that."""

_LAST_WORD = b"data: [DONE]\n\n"
_LAST = b"%x\r\n%b\r\n%b" % (len(_LAST_WORD), _LAST_WORD, END)
_LAST_FRAMES = (_LAST_WORD, len(_LAST) - len(END), True)


def split_frames(data: bytes) -> Frames | None:
    """None: there is something else."""
    if data == _LAST:
        return _LAST_FRAMES
    at, total = data.find(b"\r\n"), len(data)
    if total - at > 4 and data[:at] == b"%x" % (total - at - 4) and data.endswith(b"\r\n"):
        return data[at + 2 : -2], total, False
    at = 0
    pieces: list[bytes] = []
    while at < total:
        line = data.find(b"\r\n", at, at + _MAX_DIGITS + 2)
        digits = data[at:line] if line >= 0 else data[at:].removesuffix(b"\r")
        # `int` takes signs, underscores, spaces and `0x` as well.
        if len(digits) > _MAX_DIGITS or digits.strip(_HEX) or not digits:
            return None
        if line < 0:
            break
        size = int(digits, 16)
        if not size:
            if data[at:] == END:
                return b"".join(pieces), at, True
            if END.startswith(data[at:]):
                break
            return None
        stop = line + 2 + size
        if stop + 2 > total:
            if b"\n" in data[line + 2 :]:  # an event that is whole needn't wait for its chunk
                return None
            break
        if data[stop : stop + 2] != b"\r\n":
            return None
        pieces.append(data[line + 2 : stop])
        at = stop + 2
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), at, False
