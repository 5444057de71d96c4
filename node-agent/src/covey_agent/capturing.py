"""What this node can tell of one member: its last output, and a capture of all there is, as text (ADR 33).

Keys and tokens are blanked here, before anything leaves the machine; so are the lines in which an engine may quote a
client.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

from covey_api.reasons import FailureCause
from covey_api.text import TRANSITIONS

from covey_agent.facts.processes import describe_processes
from covey_agent.keeper.output import drop_cut_line
from covey_agent.performer import Outside
from covey_agent.ports import AgentError
from covey_agent.recorder import MAX_TRANSITIONS, read_lines
from covey_agent.runtime import Runtime
from covey_agent.supervisor.state import MemberState

LOG_BYTES = 128 * 1024
# Of each part of a capture, in characters: an answer holds 256 Ki. Of the output it is the last.
MAX_SECTION = 60_000

# A hung engine answers nothing, and it is the one that is asked about: the person waits for the rest.
METRICS_SECONDS = 4.0
BLANKED = "[blanked]"
_SECRETS = re.compile(
    r"sk-[\w-]{12,}"  # access keys, ours and others'
    r"|covey-[\w-]+\.[\w-]+\.[\w-]+"  # join tokens
    r"|hf_\w{12,}"
    r"|(?<=Bearer )[\w.~+/=-]{8,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"  # ServiceAccount tokens
)


class Captures:
    """`members`: the folder of members. AgentError of an `instanceId` that isn't here."""

    def __init__(self, node: str, runtime: Runtime, outside: Outside, members: Path) -> None:
        self._node = node
        self._runtime = runtime
        self._outside = outside
        self._members = members

    async def read_log(self, instance_id: str) -> str:
        member = self._find(instance_id)
        tail = await self._outside.keepers.read_tail(instance_id, LOG_BYTES)
        return self._blank(member, drop_cut_line(tail, LOG_BYTES))

    async def capture(self, instance_id: str) -> str:
        member = self._find(instance_id)
        sections = [
            ("", render_member(self._node, member)),
            # The newest are the last, and what is too long is cut at its end.
            (TRANSITIONS, "\n".join(self._render_transitions(instance_id))[-MAX_SECTION:]),
            ("processes", await self._describe_processes(member)),
            ("metrics", await self._read_metrics(member)),
        ]
        text = "\n\n".join(f"# {title}\n{body[:MAX_SECTION] or NOTHING}" if title else body for title, body in sections)
        text = self._blank(member, text)
        log = await self._read_output(instance_id)
        return f"{text}\n\n# output, the last of it\n{log[-MAX_SECTION:] or NOTHING}\n"

    def _find(self, instance_id: str) -> MemberState:
        """An id is also a folder's name: it must be one of ours."""
        member = self._runtime.state.members.get(instance_id)
        if member is None:
            raise AgentError(FailureCause.EXITED, f"no member of instance id '{instance_id}' is on node '{self._node}'")
        return member

    def _blank(self, member: MemberState, text: str) -> str:
        adapter = self._outside.adapters.get(member.spec.engine)
        return blank(adapter.blank(text) if adapter else text, member.assignment.key)

    async def _read_output(self, instance_id: str) -> str:
        try:
            return await self.read_log(instance_id)
        except AgentError as error:
            return f"(it can't be read: {error.message})"

    async def _read_metrics(self, member: MemberState) -> str:
        adapter = self._outside.adapters.get(member.spec.engine)
        if adapter is None or member.keeper is None:
            return ""
        try:
            async with asyncio.timeout(METRICS_SECONDS):
                return await adapter.read_metrics(member.keeper.port, member.assignment.key) or ""
        except TimeoutError:
            return f"(no answer within {METRICS_SECONDS:.0f} s)"

    async def _describe_processes(self, member: MemberState) -> str:
        if member.keeper is None:
            return ""
        return await asyncio.to_thread(describe_processes, member.keeper.pid)

    def _render_transitions(self, instance_id: str) -> Iterator[str]:
        for line in read_lines(self._members / instance_id)[-MAX_TRANSITIONS:]:
            try:
                yield render_transition(json.loads(line))
            except (ValueError, TypeError, AttributeError):
                continue  # cut off by a power cut


NOTHING = "(nothing)"


def render_member(node: str, member: MemberState) -> str:
    spec, metadata = member.spec, member.assignment.instance.metadata
    process = f"process {member.keeper.pid} on port {member.keeper.port}" if member.keeper else "no process"
    lines = [
        f"instance {metadata.namespace}/{metadata.name}, member '{member.member.name}' on node '{node}'",
        f"id {spec.instance_id}, attempt {spec.attempt}, {spec.engine} on {spec.compute}: {process}",
        f"phase {member.phase}, goal {member.goal}, {member.restarts} restarts",
    ]
    if member.failure:
        lines.append(f"{member.failure.cause}: {member.failure.message}")
    return "\n".join(lines)


def render_transition(entry: dict[str, object]) -> str:
    process = f" process {entry['pid']}" if entry.get("pid") else ""
    cause = f" {entry['cause']}: {entry.get('message', '')}" if entry.get("cause") else ""
    return (
        f"{entry.get('at')} ({entry.get('monotonicSeconds')} s) attempt {entry.get('attempt')}: {entry.get('phase')}, "
        f"goal {entry.get('goal')}{process}{cause}"
    )


def blank(text: str, *secrets: str) -> str:
    """Without these secrets, and without what looks like a key or token."""
    for secret in filter(None, secrets):
        text = text.replace(secret, BLANKED)
    return _SECRETS.sub(BLANKED, text)
