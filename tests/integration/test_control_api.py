"""The control API over a real Unix socket, with small fakes of its two ports."""

import asyncio
import hashlib
import json
import os
import socket
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from covey_api.access_key import AccessKey
from covey_api.kinds import Kind, ObjectKey
from covey_api.messages import AskAnswer, Assignments, CertificateRole, Demand, Order
from covey_api.meta import ObjectMeta
from covey_api.node import Node, NodeSpec
from covey_controller.board import FORGET_SECONDS, FleetBoard
from covey_controller.control_api import telling
from covey_controller.control_api.server import MAX_PATH_BYTES, serve_control
from covey_controller.denials import Denials
from covey_controller.ports import (
    Applied,
    Event,
    GatewaySession,
    InvalidSet,
    SourceError,
    SourceState,
    ToldEvent,
)
from covey_controller.serving.listener import ListenFailed
from kit import builders
from kit.vaults import denials_in, tokens_in, trust_in

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SMOLLM2 = "/api/v1/{}/placements/default/smollm2"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


SEEN = "2026-11-30T06:00:00Z"


class ListedObjects:
    """Explainer over a dict of objects."""

    def __init__(self) -> None:
        self.held: dict[ObjectKey, Kind] = {}
        self.watched = 0.0
        self._changed = asyncio.Event()

    def put(self, *kinds: Kind) -> None:
        self.held = self.held | {kind.key: kind for kind in kinds}
        self._notify()

    def drop(self, kind: Kind) -> None:
        self.held = {key: value for key, value in self.held.items() if key != kind.key}
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def explain(self, key: ObjectKey) -> tuple[str, dict[str, Any]]:
        return f"{key} runs on a", {"node": "a"}

    is_busy = False

    async def forecast(self, documents: tuple[Kind, ...]) -> tuple[str, dict[str, Any]]:
        return f"{len(documents)} documents", {"comes": []}

    def objects(self) -> Mapping[ObjectKey, Kind]:
        return self.held

    async def wait_objects_changed(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def events(self, key: ObjectKey) -> tuple[ToldEvent, ...]:
        return (ToldEvent(Event(key, "Scheduled", "runs on a"), SEEN),)

    def gateways(self) -> tuple[GatewaySession, ...]:
        demand = Demand(gateway="g", address="http://127.0.0.1:52415", applied=self.table_order())
        return (GatewaySession("g", connected=True, demand=demand), GatewaySession("h"))

    def watched_seconds(self) -> float:
        return self.watched

    def table_order(self) -> Order | None:
        return Order(term=2, serial=7)

    def progress(self, key: ObjectKey) -> dict[str, Any]:
        return {"step": "model", "doneBytes": 1, "totalBytes": 2, "bytesPerSecond": 3}


class WrittenDocuments:
    """Source that keeps what it is given; knobs make it refuse."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []
        self.deleted: list[ObjectKey] = []
        self.failure: Exception | None = None

    def source_state(self) -> SourceState:
        error = SourceError("a.yaml", 3, "spec", "x", "`spec` must be y; got x")
        return SourceState("fleet/", "aaa", "bbb", (error,), ("an empty folder deletes nothing",))

    def refresh_source(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def apply_documents(self, text: str, name: str, author: str = "") -> tuple[Applied, ...]:
        if self.failure is not None:
            raise self.failure
        self.texts.append((name, text))
        found: list[dict[str, Any]] = list(yaml.safe_load_all(text))
        keys = [ObjectKey(one["kind"], "default", one["metadata"]["name"]) for one in found]
        return tuple(Applied(key, "created") for key in keys)

    async def delete_documents(self, keys: tuple[ObjectKey, ...], author: str = "") -> tuple[Applied, ...]:
        if self.failure is not None:
            raise self.failure
        self.deleted.extend(keys)
        return tuple(Applied(key, "deleted") for key in keys)


@dataclass(slots=True)
class Rig:
    path: Path
    http: httpx.AsyncClient
    explainer: ListedObjects
    source: WrittenDocuments
    board: FleetBoard
    denials: Denials
    server: "asyncio.Task[None]"
    ready: list[bool] = field(default_factory=lambda: [True])

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def running_control(folder: Path) -> AsyncGenerator[Rig]:
    path = folder / "s" / "control.sock"
    tokens, trust = tokens_in(folder), trust_in(folder, time.time())
    denials = denials_in(folder)
    explainer, source, board = ListedObjects(), WrittenDocuments(), FleetBoard(time.monotonic)
    ready = [True]
    listening = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        server = group.create_task(
            serve_control(
                path,
                explainer,
                board,
                source,
                tokens,
                trust,
                denials,
                is_ready=lambda: ready[0],
                on_listening=listening.set,
            )
        )
        await listening.wait()
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://control", timeout=20) as http:
            yield Rig(path, http, explainer, source, board, denials, server, ready)
        server.cancel()


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["reason"]


async def answer_asks(board: FleetBoard, node: str, text: str) -> None:
    """As the node's agent: every line of its stream that brings asks is answered."""
    async for snapshot in board.watch_assignments(node):
        for ask in snapshot.asks if snapshot is not None else ():
            board.on_answer(node, AskAnswer(id=ask.id, text=f"{text} of {ask.instance_id}"))


# Reading


async def test_logs_are_asked_of_each_node_and_one_that_is_silent_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "TELL_SECONDS", 3.0)
    async with running_control(tmp_path) as rig:
        mine = builders.instance("smollm2-0", instance_id="00000000000000aa", node="a")
        other = builders.instance("smollm2-1", instance_id="00000000000000bb", node="b")
        rig.explainer.put(builders.placement("smollm2"), builders.model(), mine, other, builders.instance("else-0"))
        rig.board.begin(1)
        rig.board.publish(
            {name: Assignments(term=1, serial=0, complete=True, node=name, spec=NodeSpec()) for name in "ab"}, None
        )
        order = rig.board.order
        agent = asyncio.ensure_future(answer_asks(rig.board, "a", "output"))
        items = (await rig.get(SMOLLM2.format("logs")))["items"]
        assert [(each["instance"], each["node"], each["text"]) for each in items] == [
            ("default/smollm2-0", "a", "output of 00000000000000aa"),
            ("default/smollm2-1", "b", ""),
        ]
        assert "node 'b' did not answer within" in items[1]["error"]
        assert "agent/members/00000000000000bb/output.log" in items[1]["error"]
        again = await rig.get("/api/v1/capture/instances/default/smollm2-0")
        assert [each["text"] for each in again["items"]] == ["output of 00000000000000aa"]
        assert rig.board.order == order
        refused = await rig.http.get("/api/v1/logs/models/default/smollm2")
        assert error_of(refused) == (400, "BadRequest")
        agent.cancel()


async def test_open_questions_of_one_node_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "TELL_SECONDS", 10.0)
    async with running_control(tmp_path) as rig:
        rig.explainer.put(builders.instance("smollm2-0"))
        path = "/api/v1/logs/instances/default/smollm2-0"
        answers = await asyncio.gather(*(rig.get(path) for _ in range(20)))
        errors = [each["items"][0]["error"] for each in answers]
        assert sum("questions open" in error for error in errors) == 4
        assert sum("did not answer" in error for error in errors) == 16


async def test_objects_are_listed_by_plural_and_namespace(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        other = builders.model("other")
        other = other.model_copy(update={"metadata": other.metadata.model_copy(update={"namespace": "team"})})
        node = Node(metadata=ObjectMeta(name="a"))
        rig.explainer.put(builders.model(), other, node, builders.placement())

        async def names(path: str) -> list[str]:
            return [item["metadata"]["name"] for item in (await rig.get(path))["items"]]

        assert await names("/api/v1/objects/models") == ["smollm2", "other"]
        assert await names("/api/v1/objects/models?namespace=team") == ["other"]
        assert await names("/api/v1/objects/models?namespace=nowhere") == []
        assert await names("/api/v1/objects/nodes?namespace=team") == ["a"]
        assert await names("/api/v1/objects/cnodes") == ["a"]


async def test_one_object_is_answered_whole_and_cluster_scoped_ones_under_a_dash(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        placement, node = builders.placement(), Node(metadata=ObjectMeta(name="a"))
        rig.explainer.put(placement, node)
        assert await rig.get(SMOLLM2.format("objects")) == placement.to_wire()
        assert await rig.get("/api/v1/objects/cnodes/-/a") == node.to_wire()


async def test_what_is_not_there_is_404_and_says_what_there_is(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        unknown = await rig.http.get("/api/v1/objects/pods")
        assert error_of(unknown) == (404, "NotFound")
        assert "accesskeys, cnodes, fleets, instances, models, placements" in unknown.json()["error"]["message"]
        for call in ("objects", "why", "events", "progress"):
            answer = await rig.http.get(SMOLLM2.format(call))
            assert error_of(answer) == (404, "NotFound"), call
            assert "Placement 'smollm2' in namespace 'default'" in answer.json()["error"]["message"]
        assert error_of(await rig.http.get("/nowhere")) == (404, "NotFound")
        assert error_of(await rig.http.get("/api/v1/apply")) == (405, "MethodNotAllowed")


async def test_why_events_progress_source_and_gateways_pass_on_what_the_ports_say(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        rig.explainer.put(builders.placement())
        assert await rig.get(SMOLLM2.format("why")) == {"text": "placement/smollm2 runs on a", "data": {"node": "a"}}
        events = await rig.get(SMOLLM2.format("events"))
        assert events == {"items": [{"reason": "Scheduled", "message": "runs on a", "warning": False, "seen": SEEN}]}
        assert (await rig.get(SMOLLM2.format("progress")))["doneBytes"] == 1
        assert await rig.get("/api/v1/source") == {
            "source": "fleet/",
            "applied": "aaa",
            "wanted": "bbb",
            "errors": [
                {"file": "a.yaml", "line": 3, "field": "spec", "found": "x", "message": "`spec` must be y; got x"}
            ],
            "notices": ["an empty folder deletes nothing"],
        }
        for name in ("h", "g", "gone"):
            await rig.denials.record_issue(CertificateRole.GATEWAY, name, 1_800_000_000)
        await rig.denials.deny(CertificateRole.GATEWAY, "gone", 1_800_000_001)
        issued = "2027-01-15T08:00:00Z"
        address = "http://127.0.0.1:52415"
        assert await rig.get("/api/v1/gateways") == {
            "items": [
                {"name": "g", "address": address, "connected": True, "current": True, "certificateIssued": issued},
                {"name": "h", "address": "", "connected": False, "current": False, "certificateIssued": issued},
            ]
        }


async def test_pods_that_are_gone_are_listed_for_a_while_and_other_gateways_always(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        gateways = {"g": True, "pod": True, "laptop": False}
        for name, is_pod in gateways.items():
            await rig.denials.record_issue(CertificateRole.GATEWAY, name, time.time(), is_pod=is_pod)

        async def listed() -> list[str]:
            return [item["name"] for item in (await rig.get("/api/v1/gateways"))["items"]]

        assert await listed() == ["g", "laptop", "pod"]
        rig.explainer.watched = FORGET_SECONDS + 1
        assert await listed() == ["g", "laptop"]
        await rig.denials.record_issue(CertificateRole.GATEWAY, "pod", time.time())  # a renewal
        assert await listed() == ["g", "laptop"]
        await rig.denials.record_issue(CertificateRole.GATEWAY, "pod", time.time(), is_pod=False)
        assert await listed() == ["g", "laptop", "pod"]
        await rig.denials.record_issue(CertificateRole.GATEWAY, "pod", time.time(), is_pod=True)
        assert (await rig.http.delete("/api/v1/gateways/pod")).status_code == 200


async def test_only_a_gateway_with_a_certificate_can_be_removed(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        assert error_of(await rig.http.delete("/api/v1/gateways/x")) == (404, "NotFound")
        await rig.denials.record_issue(CertificateRole.GATEWAY, "g", time.time())
        await rig.denials.record_issue(CertificateRole.AGENT, "a", time.time())
        assert (await rig.http.delete("/api/v1/gateways/g")).status_code == 200
        assert error_of(await rig.http.delete("/api/v1/gateways/g")) == (404, "NotFound")
        assert error_of(await rig.http.delete("/api/v1/gateways/a")) == (404, "NotFound")
        assert [one.name for one in rig.denials.refused_gateways] == ["g"]


async def test_a_pod_that_was_taken_for_gone_and_is_back_is_listed_and_can_be_removed(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        listed = (await rig.get("/api/v1/gateways"))["items"]
        assert [(each["name"], each["connected"], each["certificateIssued"]) for each in listed] == [("g", True, "")]
        assert (await rig.http.delete("/api/v1/gateways/g")).status_code == 200
        assert await rig.get("/api/v1/gateways") == {"items": []}
        assert error_of(await rig.http.delete("/api/v1/gateways/g")) == (404, "NotFound")


async def test_before_it_leads_it_says_so_rather_than_that_nothing_is_there(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        rig.explainer.put(builders.placement())
        rig.ready[0] = False
        for path in ("/readyz", "/api/v1/objects/models", SMOLLM2.format("objects"), "/api/v1/watch?plural=models"):
            answer = await rig.http.get(path)
            assert error_of(answer) == (503, "NotReady"), path
            assert answer.headers["retry-after"] == "1"
        rig.ready[0] = True
        assert await rig.get("/readyz") == {}


# Watching


@asynccontextmanager
async def watching(rig: Rig, query: str) -> AsyncGenerator[AsyncIterator[str]]:
    async with rig.http.stream("GET", f"/api/v1/watch?{query}") as response:
        lines = response.aiter_lines()
        yield lines


async def next_change(lines: AsyncIterator[str]) -> tuple[str, str]:
    while True:
        line = json.loads(await anext(lines))
        if line:
            return line["type"], line["object"]["metadata"]["name"]


async def test_watch_sends_what_is_there_and_then_each_change_of_the_kinds_asked_for(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        rig.explainer.put(builders.placement(), builders.model())
        async with watching(rig, "plural=placements&plural=instances") as lines:
            assert await next_change(lines) == ("ADDED", "smollm2")
            rig.explainer.put(builders.instance())
            assert await next_change(lines) == ("ADDED", "smollm2-0")
            rig.explainer.put(builders.model(aliases=("m",)))
            rig.explainer.put(builders.placement(replicas=2))
            assert await next_change(lines) == ("MODIFIED", "smollm2")
            rig.explainer.put(builders.placement(replicas=2))
            rig.explainer.drop(builders.instance())
            assert await next_change(lines) == ("DELETED", "smollm2-0")


async def test_watch_shows_an_object_that_was_made_anew_as_deleted_and_added(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        first = builders.placement()
        rig.explainer.put(first)
        async with watching(rig, "plural=placements") as lines:
            await next_change(lines)
            rig.explainer.put(first.model_copy(update={"metadata": first.metadata.model_copy(update={"uid": "u2"})}))
            assert await next_change(lines) == ("DELETED", "smollm2")
            assert await next_change(lines) == ("ADDED", "smollm2")


async def test_watch_sends_a_keepalive_line_in_quiet(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig, watching(rig, "plural=models") as lines:
        async with asyncio.timeout(30):
            assert await anext(lines) == "{}"
            assert await anext(lines) == "{}"


async def test_watch_without_a_kind_is_refused(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        assert error_of(await rig.http.get("/api/v1/watch")) == (400, "BadRequest")
        assert error_of(await rig.http.get("/api/v1/watch?plural=models&plural=pods")) == (404, "NotFound")


# Changing


async def test_apply_hands_the_text_to_the_source_and_answers_each_outcome(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        text = "kind: Model\nmetadata: {name: m}\n"
        answer = await rig.http.post("/api/v1/apply", json={"text": text, "name": "m.yaml"})
        assert answer.json() == {
            "results": [{"kind": "Model", "namespace": "default", "name": "m", "outcome": "created"}]
        }
        assert rig.source.texts == [("m.yaml", text)]


async def test_an_invalid_set_is_422_with_each_error_by_file_and_line(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        rig.source.failure = InvalidSet((SourceError("m.yaml", 7, "spec.x", "1", "`spec.x` must be 2; got 1"),))
        answer = await rig.http.post("/api/v1/apply", json={"text": "x", "name": "m.yaml"})
        assert error_of(answer) == (422, "InvalidSet")
        assert answer.json()["error"]["errors"] == [
            {"file": "m.yaml", "line": 7, "field": "spec.x", "found": "1", "message": "`spec.x` must be 2; got 1"}
        ]


async def test_delete_takes_any_name_of_a_kind_and_names_what_is_missing(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        body = {"keys": [{"kind": "plc", "namespace": "default", "name": "m"}, {"kind": "Node", "name": "a"}]}
        answer = await rig.http.post("/api/v1/delete", json=body)
        assert [one["outcome"] for one in answer.json()["results"]] == ["deleted", "deleted"]
        assert rig.source.deleted == [ObjectKey("Placement", "default", "m"), ObjectKey("Node", "", "a")]
        rig.source.failure = KeyError(ObjectKey("Model", "default", "n"))
        missing = await rig.http.post("/api/v1/delete", json={"keys": [{"kind": "models", "name": "n"}]})
        assert error_of(missing) == (404, "NotFound")
        assert "model/n" in missing.json()["error"]["message"]


async def test_a_source_that_cannot_be_written_is_409_and_names_the_file(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        rig.source.failure = PermissionError(13, "Permission denied", "/fleet/a.yaml")
        answer = await rig.http.post("/api/v1/apply", json={"text": "x"})
        assert error_of(answer) == (409, "SourceNotWritable")
        assert "/fleet/a.yaml" in answer.json()["error"]["message"]


async def test_malformed_bodies_are_400_with_the_field(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        for path, body, words in (
            ("apply", b"", "JSON"),
            ("apply", b"[]", "ApplyBody"),
            ("apply", b'{"name": "x"}', "`text`"),
            ("delete", b'{"keys": []}', "`keys`"),
            ("delete", b'{"keys": [{"kind": "Model"}]}', "`keys.0.name`"),
            ("tokens", b'{"role": "admin"}', "`role`"),
            ("tokens", b'{"role": "agent", "uses": 0}', "`uses`"),
            ("tokens", b'{"role": "agent", "ttlSeconds": 99999999999}', "`ttlSeconds`"),
            ("keys", b'{"name": "A b"}', "`name`"),
        ):
            answer = await rig.http.post(f"/api/v1/{path}", content=body)
            assert error_of(answer) == (400, "InvalidBody"), (path, body)
            assert words in answer.json()["error"]["message"]
        assert rig.source.texts == []


async def test_a_token_is_minted_for_the_role_asked_for_and_kept_only_as_a_hash(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        body = {"role": "gateway", "uses": 2, "ttlSeconds": 60}
        token = (await rig.http.post("/api/v1/tokens", json=body)).json()["token"]
        kept = tokens_in(tmp_path)
        await kept.redeem(token, CertificateRole.GATEWAY, time.time())
        assert token.split(".")[1] not in (tmp_path / "tokens.json").read_text()


async def test_an_access_key_is_shown_once_and_written_as_its_hash(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        body = {"name": "true", "namespace": "default", "expiry": "2027-01-31T00:00:00Z"}
        key = (await rig.http.post("/api/v1/keys", json=body)).json()["key"]
        assert key.startswith("sk-covey-")
        assert len(key) >= len("sk-covey-") + 43
        ((_, text),) = rig.source.texts
        assert key not in text
        written = AccessKey.model_validate(yaml.safe_load(text))
        assert written.metadata.name == "true"
        assert written.spec.hash == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
        assert written.spec.expiry == "2027-01-31T00:00:00Z"
        rig.explainer.put(written)
        again = await rig.http.post("/api/v1/keys", json=body)
        assert error_of(again) == (409, "AlreadyExists")
        await rig.http.delete("/api/v1/keys/default/true")
        assert rig.source.deleted == [ObjectKey("AccessKey", "default", "true")]


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    texts = [record.getMessage() for record in caplog.records if record.name == "covey.controller.audit"]
    return [json.loads(text.removeprefix("audit ")) for text in texts]


async def test_each_administrative_act_leaves_a_line_and_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    by = "this machine's user"
    async with running_control(tmp_path) as rig:
        text = "kind: Model\nmetadata: {name: m}\n"
        await rig.http.post("/api/v1/apply", json={"text": text, "name": "m.yaml", "author": "Ann <ann@example.org>"})
        await rig.http.post("/api/v1/delete", json={"keys": [{"kind": "plc", "namespace": "default", "name": "m"}]})
        key = (await rig.http.post("/api/v1/keys", json={"name": "ann"})).json()["key"]
        await rig.http.delete("/api/v1/keys/default/ann")
        token = (await rig.http.post("/api/v1/tokens", json={"role": "agent", "uses": 2})).json()["token"]
        await rig.http.delete("/api/v1/gateways/g%0Aaudit")
        await rig.http.post("/api/v1/authority/rotate")
        for path in ("objects/models", "gateways", "source"):
            await rig.http.get(f"/api/v1/{path}")
        rig.source.failure = PermissionError(13, "Permission denied", "/fleet/a.yaml")
        await rig.http.post("/api/v1/apply", json={"text": "x", "name": "secret.yaml"})
    assert audit_lines(caplog) == [
        {"act": "Apply", "what": ["model/default/m"], "by": "Ann <ann@example.org>", "outcome": "Done"},
        {"act": "Delete", "what": ["placement/default/m"], "by": by, "outcome": "Done"},
        {"act": "CreateKey", "what": ["accesskey/default/ann"], "by": by, "outcome": "Done"},
        {"act": "DeleteKey", "what": ["accesskey/default/ann"], "by": by, "outcome": "Done"},
        {"act": "CreateToken", "what": ["token/agent", "uses/2", "ttlSeconds/3600"], "by": by, "outcome": "Done"},
        {"act": "RemoveGateway", "what": ["gateway/g\naudit"], "by": by, "outcome": "NotFound"},
        {"act": "RotateAuthority", "what": [], "by": by, "outcome": "Done"},
        {"act": "Apply", "what": ["secret.yaml"], "by": by, "outcome": "SourceNotWritable"},
    ]
    assert key not in caplog.text
    assert token not in caplog.text
    assert "\n" not in "".join(record.getMessage() for record in caplog.records if "audit " in record.getMessage())


# The socket


async def test_the_socket_and_its_folder_are_private_and_the_socket_goes_with_the_server(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        assert stat.S_IMODE(rig.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(rig.path.parent.stat().st_mode) == 0o700
        path = rig.path
    assert not path.exists()


async def test_a_second_controller_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig:
        with pytest.raises(ListenFailed, match="another controller listens"):
            await _serve_alone(rig.path, tmp_path)
        assert await rig.get("/readyz") == {}


async def test_the_socket_of_a_killed_controller_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s" / "control.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(os.fspath(path))
        left.listen()
    assert path.is_socket()
    async with running_control(tmp_path) as rig:
        assert await rig.get("/readyz") == {}


async def test_a_file_in_the_sockets_place_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(ListenFailed, match="another file"):
        await _serve_alone(path, tmp_path)
    assert path.read_text() == "precious"


async def test_a_path_that_the_system_cannot_take_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / ("x" * MAX_PATH_BYTES) / "control.sock"
    with pytest.raises(ListenFailed, match="--state"):
        await _serve_alone(path, tmp_path)


async def test_it_ends_though_a_watch_is_open(tmp_path: Path) -> None:
    async with running_control(tmp_path) as rig, watching(rig, "plural=models") as lines:
        await anext(lines)
        begun = time.monotonic()
        rig.server.cancel()
        with pytest.raises(StopAsyncIteration):
            await anext(lines)
        await asyncio.wait([rig.server])
        assert time.monotonic() - begun < 20  # by itself the watch would stay open


async def _serve_alone(path: Path, folder: Path) -> None:
    tokens, trust = tokens_in(folder / "other"), trust_in(folder / "other", time.time())
    await serve_control(
        path,
        ListedObjects(),
        FleetBoard(time.monotonic),
        WrittenDocuments(),
        tokens,
        trust,
        denials_in(folder / "other"),
        is_ready=lambda: True,
        on_listening=lambda: None,
    )
