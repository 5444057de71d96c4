"""An answer as OpenAI's Responses tell it: numbered events, or the whole response.

    created ─▶ in_progress ─▶ (item added ─▶ its parts and deltas ─▶ item done)* ─▶ completed | incomplete

Items follow one another: reasoning, a message, each tool call. `incomplete` is an answer that met its limit; `failed`
comes after `error` when it broke.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.openai.errors import engine_failed, render_envelope
from covey_gateway.wire.responses.tools import Names
from covey_gateway.wire.steps import CallBegun, CallGrew, Finished, Said, Step, StepReader, Thought
from covey_gateway.wire.turns import Turns

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}


@dataclass(slots=True)
class _Item:
    kind: str
    id: str
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    pieces: list[str] = field(default_factory=list[str])

    def render(self, status: str) -> dict[str, Any]:
        text = "".join(self.pieces)
        item: dict[str, Any] = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            within = {"namespace": self.namespace} if self.namespace else {}
            return item | {"call_id": self.call_id, "name": self.name, "arguments": text} | within
        item |= {"summary": []} if self.kind == "reasoning" else {"role": "assistant"}
        return item | {"content": [self.render_part(text)] if status != "in_progress" else []}

    def render_part(self, text: str) -> dict[str, Any]:
        """The one part of its content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class _Response:
    """What has been answered so far."""

    def __init__(self, model: str, asked: dict[str, Any], names: Names) -> None:
        self.model = model
        self._names = names
        self.reader = StepReader(model)
        self.items: list[_Item] = []
        self.finish = ""
        self._asked = asked

    def begin_item(self, kind: str, call_id: str = "", name: str = "") -> _Item:
        id_ = f"{_PREFIXES[kind]}_{self.reader.id}_{len(self.items)}"
        namespace, name = self._names.get(name, ("", name))
        self.items.append(_Item(kind, id_, call_id, name, namespace))
        return self.items[-1]

    @property
    def status(self) -> str:
        return "incomplete" if self.finish in ("length", "content_filter") else "completed"

    def render(self, status: str, error: ApiError | None = None) -> dict[str, Any]:
        reader = self.reader
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        incomplete = {"reason": reasons[self.finish]} if status == "incomplete" else None
        is_over = status != "in_progress"
        last = len(self.items) - 1
        return {
            "id": f"resp_{reader.id}",
            "object": "response",
            "created_at": reader.created,
            "status": status,
            "error": {"code": "server_error", "message": error.message} if error is not None else None,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": [
                item.render("incomplete" if index == last and status != "completed" else "completed")
                for index, item in enumerate(self.items)
            ]
            if is_over
            else [],
            **({"usage": self._render_usage()} if is_over and error is None else {}),
            **self._asked,
        }

    def _render_usage(self) -> dict[str, Any]:
        usage = self.reader.usage
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.completion,
        }


class WholeResponse:
    def __init__(self, model: str, asked: dict[str, Any], names: Names) -> None:
        self._response = _Response(model, asked, names)
        self._calls: list[_Item] = []

    def take(self, events: bytes) -> bytes | ApiError:
        steps = self._response.reader.read(events)
        if isinstance(steps, ApiError):
            return steps
        for step in steps:
            self._add(step)
        return b""

    def _add(self, step: Step) -> None:
        match step:
            case Thought(text):
                self._item("reasoning").pieces.append(text)
            case Said(text):
                self._item("message").pieces.append(text)
            case CallBegun(_, id_, name):
                self._calls.append(self._response.begin_item("function_call", id_, name))
            case CallGrew(ordinal, arguments):
                self._calls[ordinal].pieces.append(arguments)
            case Finished(reason):
                self._response.finish = reason

    def _item(self, kind: str) -> _Item:
        items = self._response.items
        return items[-1] if items and items[-1].kind == kind else self._response.begin_item(kind)

    def end(self) -> bytes:
        return msgspec.json.encode(self._response.render(self._response.status))

    def fail(self, error: ApiError) -> bytes:
        return render_envelope(error)


class ResponseStream:
    def __init__(self, model: str, asked: dict[str, Any], names: Names) -> None:
        self._response = _Response(model, asked, names)
        self._turns = Turns()
        self._number = 0
        self._has_begun = False
        self._open: _Item | None = None
        self._call = -1

    def take(self, events: bytes) -> bytes | ApiError:
        steps = self._response.reader.read(events)
        if isinstance(steps, ApiError):
            return steps
        pieces = [self._begin()] if not self._has_begun and self._response.reader.id else []
        for step in self._turns.order(steps):
            told = self._tell(step)
            if isinstance(told, ApiError):
                return told
            pieces.append(told)
        return b"".join(pieces)

    def end(self) -> bytes:
        begin = b"" if self._has_begun else self._begin()
        rest = b"".join(told for step in self._turns.end() if isinstance(told := self._tell(step), bytes))
        status = self._response.status
        return (
            begin
            + rest
            + self._close(status)
            + self._event(f"response.{status}", response=self._response.render(status))
        )

    def fail(self, error: ApiError) -> bytes:
        words: dict[str, Any] = msgspec.json.decode(render_envelope(error))["error"]
        told = {"code": words["code"], "message": words["message"], "param": words["param"]}
        # A client may have a stream's head and nothing else by now; SDKs take no event before the first.
        begin = b"" if self._has_begun else self._begin()
        failed = self._response.render("failed", error)
        return begin + self._event("error", **told) + self._event("response.failed", response=failed)

    def _event(self, event: str, **content: Any) -> bytes:
        body: dict[str, Any] = {"type": event, "sequence_number": self._number} | content
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(body))

    def _begin(self) -> bytes:
        self._has_begun = True
        begun = self._response.render("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    @property
    def _index(self) -> int:
        return len(self._response.items) - 1

    def _tell(self, step: Step) -> bytes | ApiError:
        match step:
            case Thought(text):
                return self._switch("reasoning") + self._delta("response.reasoning_text.delta", text, content_index=0)
            case Said(text):
                return self._switch("message") + self._delta(
                    "response.output_text.delta", text, content_index=0, logprobs=[]
                )
            case CallBegun(ordinal, id_, name):
                self._call = ordinal
                return self._start("function_call", id_, name)
            case CallGrew(ordinal, arguments):
                if ordinal != self._call or self._open is None or self._open.kind != "function_call":
                    return engine_failed(self._response.model, "it went on with a tool call that was whole")
                return self._delta("response.function_call_arguments.delta", arguments)
            case Finished(reason):
                self._response.finish = reason
                return b""

    def _switch(self, kind: str) -> bytes:
        return b"" if self._open is not None and self._open.kind == kind else self._start(kind)

    def _start(self, kind: str, call_id: str = "", name: str = "") -> bytes:
        closing = self._close("completed")
        item = self._open = self._response.begin_item(kind, call_id, name)
        added = self._event("response.output_item.added", output_index=self._index, item=item.render("in_progress"))
        if kind != "function_call":
            added += self._of_item("response.content_part.added", content_index=0, part=item.render_part(""))
        return closing + added

    def _of_item(self, event: str, **content: Any) -> bytes:
        return self._event(event, item_id=self._response.items[-1].id, output_index=self._index, **content)

    def _delta(self, event: str, text: str, **content: Any) -> bytes:
        self._response.items[-1].pieces.append(text)
        return self._of_item(event, delta=text, **content)

    def _close(self, status: str) -> bytes:
        """End the open item."""
        if (item := self._open) is None:
            return b""
        text = "".join(item.pieces)
        if item.kind == "message":
            done = self._of_item("response.output_text.done", content_index=0, text=text, logprobs=[])
        elif item.kind == "reasoning":
            done = self._of_item("response.reasoning_text.done", content_index=0, text=text)
        else:
            done = self._of_item("response.function_call_arguments.done", name=item.name, arguments=text)
        if item.kind != "function_call":
            done += self._of_item("response.content_part.done", content_index=0, part=item.render_part(text))
        done += self._event("response.output_item.done", output_index=self._index, item=item.render(status))
        self._open = None
        return done
