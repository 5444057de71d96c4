"""The gateway's end of the fleet API, against the real one: tables come down, demand goes up, serving goes on."""

import asyncio
import json
import shutil
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from covey_api.messages import (
    CertificateRole,
    Demand,
    DemandAnswer,
    Endpoint,
    Endpoints,
    ModelState,
    Order,
    ServedModel,
)
from covey_controller.fleet_api.server import serve_fleet
from covey_fleet_client.files import ensure_private_folder
from covey_fleet_client.join import Admission
from covey_fleet_client.tasks import flatten_errors
from covey_gateway import fleet, kept_table
from covey_gateway.fleet import FleetLink
from covey_gateway.kept_table import KeptTable
from covey_gateway.routing.table import parse_endpoints
from integration.fleet_rig import Rig, SteeredBoard, running_fleet
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Call,
    Gateway,
    ScriptedEngine,
    asked,
    chunk,
    connected,
    eventually,
    running_gateway,
    token,
)

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


class TableBoard(SteeredBoard):
    """A board whose endpoints are the engines that a test names."""

    def __init__(self) -> None:
        super().__init__()
        self.engines: tuple[ScriptedEngine, ...] = ()
        self.term = 1
        self.gateways = 0

    def serve(self, *engines: ScriptedEngine) -> None:
        self.engines = engines
        self.publish()

    def on_demand(self, gateway: str, demand: Demand) -> DemandAnswer:
        return super().on_demand(gateway, demand).model_copy(update={"gateways": self.gateways})

    async def watch_endpoints(self, gateway: str) -> AsyncIterator[Endpoints | None]:
        async for one in super().watch_endpoints(gateway):
            yield None if one is None else self._table(one.serial)

    def _table(self, serial: int) -> Endpoints:
        models = (ServedModel(namespace="default", name="m", tasks=("Chat",), state=ModelState.LOADING),)
        endpoints = tuple(
            Endpoint(
                instance_id=f"{index:016x}",
                instance=f"default/m-{index}",
                namespace="default",
                model="m",
                node="a",
                host="127.0.0.1",
                port=engine.port,
                key="engine-key",
                engine="LlamaServer",
                slots=4,
                context_tokens=2048,
            )
            for index, engine in enumerate(self.engines)
        )
        return Endpoints(term=self.term, serial=serial, models=models, endpoints=endpoints)

    @property
    def applied(self) -> Order | None:
        return self.demands[-1][1].applied if self.demands else None


@asynccontextmanager
async def linked(folder: Path, url: str, token_text: str | None, name: str = "gw") -> AsyncGenerator[Gateway]:
    """A gateway with a fleet link; its state is in `folder`."""
    state = folder / "state" / "gateway"
    ensure_private_folder(state.parent)
    ensure_private_folder(state)
    token_file = folder / "token"
    if token_text is not None:
        token_file.write_text(token_text)
    async with running_gateway(is_routed=False) as gateway:
        admission = Admission(token_file)
        kept = KeptTable(state)
        if saved := kept.load():
            gateway.apply(parse_endpoints(saved, ""))
        link = FleetLink(
            gateway.traffic, gateway.apply, kept, url, admission, name, "http://127.0.0.1:1", "", gateway.engines.share
        )
        running = asyncio.ensure_future(link.run())
        try:
            yield gateway
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def serve_again(rig: Rig) -> None:
    """The same controller at the same address."""
    await serve_fleet(
        rig.board,
        rig.trust,
        rig.tokens,
        rig.denials,
        folder=rig.folder / "controller",
        host="127.0.0.1",
        port=int(rig.url.rpartition(":")[2]),
        on_listening=lambda _: None,
    )


async def new_token(rig: Rig) -> str:
    return await rig.token(CertificateRole.GATEWAY)


async def test_a_copied_disks_gateway_counts_for_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    board = TableBoard()
    async with (
        ScriptedEngine() as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path, rig.url, await new_token(rig)) as gateway,
    ):
        board.serve(engine)
        await eventually(lambda: board.applied == board.order, 20)
        shutil.copytree(tmp_path / "state", tmp_path / "copy" / "state")
        async with linked(tmp_path / "copy", rig.url, None) as copy:
            await eventually(lambda: "another machine is connected as gateway 'gw'" in caplog.text, 20)
            heard, readers = len(board.demands), list(board.readers)
            board.serve(engine)
            await eventually(lambda: board.applied == board.order)
            assert len(board.demands) > heard
            assert readers == board.readers == ["gw"], "the first alone is sent tables"
            assert gateway.traffic.table.order == board.order
            assert copy.traffic.table.order != board.order


async def test_a_table_comes_down_is_kept_and_acknowledged(tmp_path: Path) -> None:
    board = TableBoard()
    async with (
        ScriptedEngine() as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path, rig.url, await new_token(rig)) as gateway,
    ):
        await eventually(lambda: gateway.traffic.has_table, 20)
        assert (await asked(gateway)).error["code"] == "model_loading"
        board.serve(engine)
        await eventually(lambda: board.applied == board.order)
        assert (await asked(gateway, stream=True)).text == "Hello"
        assert b"authorization: Bearer engine-key" in engine.calls[0].head
        path = tmp_path / "state/gateway/table.json"
        await eventually(lambda: path.exists() and json.loads(path.read_text())["serial"] == board.order.serial)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert board.demands[-1][1].gateway == "gw"
        assert board.demands[-1][1].address == "http://127.0.0.1:1"


async def test_beside_other_gateways_it_keeps_fewer_idle_connections(tmp_path: Path) -> None:
    board = TableBoard()
    board.gateways = 4
    async with (
        ScriptedEngine() as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path, rig.url, await new_token(rig)) as gateway,
    ):
        board.serve(engine)
        await eventually(lambda: board.applied == board.order, 20)
        count = len(board.demands)
        await eventually(lambda: len(board.demands) > count, 20)
        await asyncio.gather(*(asked(gateway, stream=True) for _ in range(4)))
        await eventually(lambda: engine.open_connections == 1, 20)


async def test_a_table_that_the_disk_refused_is_kept_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_table, "SAVE_AGAIN_SECONDS", 0.2)
    path = tmp_path / "state/gateway/table.json"
    (path / "in the way").mkdir(parents=True)
    path.parent.chmod(0o700)
    path.parent.parent.chmod(0o700)
    board = TableBoard()
    async with (
        ScriptedEngine() as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path, rig.url, await new_token(rig)),
    ):
        board.serve(engine)
        await eventually(lambda: board.applied == board.order)
        await asyncio.sleep(0.5)
        (path / "in the way").rmdir()
        path.rmdir()
        await eventually(lambda: path.is_file() and json.loads(path.read_text())["serial"] == board.order.serial)


async def test_a_gateway_serves_by_its_last_table_with_no_controller(tmp_path: Path) -> None:
    board = TableBoard()
    async with ScriptedEngine() as engine:
        async with running_fleet(tmp_path / "c", board) as rig:
            token_text = await new_token(rig)
            board.serve(engine)
            async with linked(tmp_path, rig.url, token_text) as gateway:
                await eventually(lambda: (tmp_path / "state/gateway/table.json").exists())
            url = rig.url
        async with linked(tmp_path, url, None) as gateway:
            assert (await asked(gateway, stream=True)).text == "Hello"


async def test_a_lower_table_is_ignored(tmp_path: Path) -> None:
    board = TableBoard()
    async with (
        ScriptedEngine() as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path, rig.url, await new_token(rig)) as gateway,
    ):
        board.term = 5
        board.serve(engine)
        await eventually(lambda: gateway.traffic.table.order.term == 5)
        board.term = 4
        board.serve()
        board.publish()
        await asyncio.sleep(0.3)
        assert (await asked(gateway, stream=True)).text == "Hello"
        await eventually(lambda: board.applied is not None and board.applied.term == 5)


async def test_a_departed_endpoint_is_reported_idle_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "REPORT_SECONDS", 300.0)
    board = TableBoard()
    go_on = asyncio.Event()

    async def wait(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        await go_on.wait()
        await call.write(chunk(DONE), LAST_CHUNK)

    async with (
        ScriptedEngine(wait) as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path, rig.url, await new_token(rig)) as gateway,
    ):
        board.serve(engine)
        await eventually(lambda: board.applied == board.order)
        async with connected(gateway) as client:
            await client.ask(stream=True)
            await client.read_head()
            board.serve()
            await eventually(lambda: board.applied == board.order)
            assert [one.in_flight for one in board.demands[-1][1].endpoints] == [1]
            go_on.set()
            await eventually(lambda: board.demands[-1][1].endpoints == ())


async def test_the_link_comes_back_after_the_controller_does(tmp_path: Path) -> None:
    board = TableBoard()
    async with (
        ScriptedEngine() as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path, rig.url, await new_token(rig)) as gateway,
    ):
        await eventually(lambda: gateway.traffic.has_table, 20)
        rig.server.cancel()
        await asyncio.gather(rig.server, return_exceptions=True)
        await asyncio.sleep(0.5)
        board.serve(engine)
        again = asyncio.ensure_future(serve_again(rig))
        await eventually(lambda: gateway.traffic.table.order == board.order, 20)
        assert (await asked(gateway, stream=True)).text == "Hello"
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)


async def test_nodes_of_an_earlier_leaders_table_are_named_until_there_is_one_of_this_leader(tmp_path: Path) -> None:
    """A leader whose store was lost knows of no other fleet than this (ADR 5)."""
    board = TableBoard()
    async with ScriptedEngine() as engine:
        board.serve(engine)
        async with running_fleet(tmp_path / "c", board) as rig, linked(tmp_path, rig.url, await new_token(rig)):
            await eventually(lambda: board.applied == board.order and board.demands[-1][1].nodes == ())
            await eventually(lambda: (tmp_path / "state/gateway/table.json").exists())
            rig.server.cancel()
            await asyncio.gather(rig.server, return_exceptions=True)
            board.term, board.demands = 0, []  # no table of this one is taken
            again = asyncio.ensure_future(serve_again(rig))
            await eventually(lambda: bool(board.demands), 20)
            assert board.demands[0][1].nodes == ("a",)
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)


class SilentBoard(SteeredBoard):
    """A leader that has no table yet."""

    async def watch_endpoints(self, gateway: str) -> AsyncIterator[Endpoints | None]:
        async for _ in super().watch_endpoints(gateway):
            yield None


async def test_a_gateway_that_is_removed_before_its_first_table_waits_to_be_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet, "LONGEST_DELAY_SECONDS", 0.2)
    board = SilentBoard()
    async with running_fleet(tmp_path / "c", board) as rig, linked(tmp_path, rig.url, await new_token(rig)) as gateway:
        await eventually(lambda: board.readers == ["gw"], 20)
        (tmp_path / "state/gateway/token-id").unlink()  # as one that joined before there was this file
        await rig.denials.deny(CertificateRole.GATEWAY, "gw", time.time())
        await eventually(lambda: caplog.text.count("it waits to be let in") > 1, 20)
        assert not gateway.traffic.has_table
        assert board.readers == []
        (tmp_path / "token").write_text(await new_token(rig))
        await eventually(lambda: board.readers == ["gw"], 20)


async def test_a_gateway_that_was_never_let_in_ends_with_the_reason(tmp_path: Path) -> None:
    async with running_fleet(tmp_path / "c") as rig, running_gateway(is_routed=False) as gateway:
        identifier, _, digest = (await new_token(rig)).split(".")
        (tmp_path / "token").write_text(f"{identifier}.{'A' * 43}.{digest}")
        admission = Admission(tmp_path / "token")
        kept = KeptTable(tmp_path / "gateway")
        link = FleetLink(gateway.traffic, gateway.apply, kept, rig.url, admission, "gw", "http://127.0.0.1:1", "")
        with pytest.raises(ExceptionGroup) as caught:
            await link.run()
        assert "join token" in str(flatten_errors(caught.value)[0])
