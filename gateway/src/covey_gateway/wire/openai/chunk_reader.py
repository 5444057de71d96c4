"""Chat chunks out of an engine's events, bounded; what the engine says of its own failure becomes ours."""

import msgspec

from covey_gateway.limits import MAX_ANSWER_BYTES
from covey_gateway.wire.chunks import CHUNK, Chunk
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import engine_failed, translate_event_error
from covey_gateway.wire.sse import DONE, split_data


class ChunkReader:
    """Takes whole events of one answer."""

    def __init__(self, model: str, hint: str = "") -> None:
        """`hint`: what the client may do about an answer that is too long."""
        self._model = model
        self._hint = hint
        self._total_bytes = 0

    def read(self, events: bytes) -> list[Chunk] | ApiError:
        """ApiError when the engine wrote one, or wrote something that is no chunk; chunks before it are dropped."""
        self._total_bytes += len(events)
        if self._total_bytes > MAX_ANSWER_BYTES:
            return engine_failed(self._model, f"its answer is longer than {MAX_ANSWER_BYTES} bytes{self._hint}")
        chunks: list[Chunk] = []
        for data in split_data(events):
            if data == DONE:
                continue
            try:
                chunk = CHUNK.decode(data)
            except (msgspec.DecodeError, RecursionError):
                return self._explain(data, "it wrote no chat chunk")
            if chunk.error is not None:
                return self._explain(data, "it wrote an error")
            chunks.append(chunk)
        return chunks

    def _explain(self, data: bytes, otherwise: str) -> ApiError:
        return translate_event_error(data, self._model) or engine_failed(self._model, otherwise)
