"""`covey gateway --workers N`: real processes that are one gateway."""

import asyncio
import hashlib
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from covey_api.messages import Cancel, CertificateRole, ClientKey, Endpoint, Endpoints, ModelState, ServedModel
from covey_controller.board import FleetBoard
from integration.fleet_rig import running_fleet
from integration.gateway_rig import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    Call,
    RawClient,
    ScriptedEngine,
    chunk,
    token,
)
from integration.test_gateway_fleet import linked
from integration.test_gateway_seeing import answer_counted
from integration.test_https_clients import write_pair
from kit.ports import free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="finds by /proc which worker has a connection"),
]

SECRET = "sk-covey-test"
HASH = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()
BEARER = f"authorization: Bearer {SECRET}"
COUNT = 4
ONE_SOCKET = (
    "import sys; import covey_gateway.workers.parent as parent; parent.SPREADS = False; "
    "from covey_gateway.main import main; sys.exit(main())"
)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


def write_table(folder: Path, port: int) -> str:
    """`m` at an engine with as many slots as may be, `two` at one with two."""
    url = f"http://127.0.0.1:{port}"
    keys = [
        {"name": name, "hash": f"sha256:{hashlib.sha256(f'sk-covey-{name}'.encode()).hexdigest()}", **limits}
        for name, limits in (("one", {"concurrency": 1}), ("ten", {"requestsPerMinute": 10}))
    ]
    models = [
        {"name": "m", "endpoints": [{"url": url}]},
        {"name": "two", "endpoints": [{"url": url, "slots": 2}]},
    ]
    path = folder / "table.json"
    path.write_text(json.dumps({"models": models, "keys": keys}))
    return str(path)


ONE, TEN = "authorization: Bearer sk-covey-one", "authorization: Bearer sk-covey-ten"


async def until(is_so: Callable[[], bool]) -> None:
    async def ask() -> bool:
        return is_so()

    await until_true(ask)


async def until_true(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        for _ in itertools.repeat(None):
            if await is_so():
                return
            await asyncio.sleep(0.02)


async def read_stream(client: RawClient) -> bytes:
    """The rest of a chunked answer."""
    found = b""
    async with asyncio.timeout(60):
        while piece := await client.read_chunk():
            found += piece
    return found


async def enter(stack: AsyncExitStack, office: AbstractContextManager["Office"]) -> "Office":
    """It starts on a thread: the controller is in this one."""
    entered = await asyncio.to_thread(office.__enter__)
    stack.push_async_callback(asyncio.to_thread, office.__exit__, None, None, None)
    return entered


@dataclass
class Office:
    process: subprocess.Popen[str]
    port: int = 0
    engine_port: int = 0
    log: Path = Path()
    lines: list[str] = field(default_factory=list[str])

    @property
    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[RawClient]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        try:
            yield RawClient(reader, writer)
        finally:
            writer.transport.abort()

    async def asked(self, *headers: str, **fields: Any) -> Answer:
        async with self.connected() as client:
            await client.ask(*headers, **fields)
            return await client.read_answer()

    async def get(self, path: str, method: str = "GET", *headers: str) -> Answer:
        async with self.connected() as client:
            lines = (f"{method} {path} HTTP/1.1", "host: localhost", "content-length: 0", *headers, "", "")
            await client.send("\r\n".join(lines).encode())
            return await client.read_answer()

    async def figures(self, client: RawClient | None = None) -> dict[str, float]:
        """As the worker of this connection has them, or any."""
        async with AsyncExitStack() as stack:
            client = client or await stack.enter_async_context(self.connected())
            await client.send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
            text = (await client.read_answer()).body.decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    async def spread(self, stack: AsyncExitStack) -> dict[int, RawClient]:
        """A connection to each worker."""
        workers = self.workers
        found: dict[int, RawClient] = {}
        async with asyncio.timeout(60):
            while len(found) < len(workers):
                client = await stack.enter_async_context(self.connected())
                found.setdefault(await find_owner(client, workers), client)
        return found


async def find_owner(client: RawClient, workers: list[int]) -> int:
    """Which process has the other end of this connection, once one has."""
    port = client.writer.get_extra_info("sockname")[1]
    await until(lambda: bool(find_owners(port, workers)))
    return find_owners(port, workers)[0]


def find_owners(port: int, workers: list[int]) -> list[int]:
    """Who has a socket whose other end has this port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{line[9]}]" for line in lines if int(line[2].rpartition(":")[2], 16) == port}
    return [worker for worker in workers if sockets & descriptors_of(worker)]


def descriptors_of(pid: int) -> set[str]:
    found: set[str] = set()
    with suppress(FileNotFoundError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(os.readlink(each))
    return found


@contextmanager
def running(*flags: str, count: int = 2, program: tuple[str, ...] = ("-m", "covey_gateway")) -> Generator[Office]:
    command = (sys.executable, *program, *flags, "--listen", "127.0.0.1:0", "--workers", str(count))
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    office = Office(process)
    reader = threading.Thread(target=lambda: office.lines.extend(process.stderr or ()), daemon=True)
    workers: list[int] = []
    try:
        for line in process.stderr:
            office.lines.append(line)
            if " listening on " in line:
                office.port = int(line.rpartition(":")[2])
                break
        else:
            raise AssertionError("".join(office.lines))
        reader.start()
        workers = office.workers
        assert len(workers) == count
        yield office
        if process.poll() is None:
            workers = office.workers
    finally:
        process.kill()
        process.wait(60)
        if reader.ident is not None:
            reader.join(60)
        process.stderr.close()
        deadline = time.monotonic() + 60
        while any(map(is_running, workers)) and time.monotonic() < deadline:  # they end when the parent does
            time.sleep(0.05)
        left = [worker for worker in workers if is_running(worker)]
        for worker in left:
            os.kill(worker, signal.SIGKILL)
        assert not left


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Generator[Office]:
    folder, port = tmp_path_factory.mktemp("workers"), free_port()
    log = folder / "access.log"
    with running("--table", write_table(folder, port), "--access-log", str(log), count=COUNT) as office:
        office.engine_port, office.log = port, log
        yield office


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@dataclass
class Desk:
    """An engine's script that counts what is there at a time, and lets go when it is told."""

    now: int = 0
    most: int = 0
    seconds: float = 0.005
    may_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, call: Call) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        await call.stream("Hi")

    async def hold(self, call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        await self.may_go.wait()
        await call.write(chunk(token("b")), chunk(DONE), LAST_CHUNK)


async def test_a_key_of_one_request_at_a_time_never_has_two_over_four_workers_and_fifty_connections(
    office: Office,
) -> None:
    desk = Desk()
    async with ScriptedEngine(desk.answer, port=office.engine_port), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(office.connected()) for _ in range(50)]
        statuses = Counter[int]()

        async def ask_often(client: RawClient) -> None:
            for _ in range(6):
                await client.ask(ONE)
                statuses[(await client.read_answer()).status] += 1

        await asyncio.gather(*map(ask_often, clients))
        assert desk.most == 1
        assert set(statuses) == {200, 429}
        assert sum(statuses.values()) == 300
        for client in (await office.spread(stack)).values():  # one after the other, at each worker
            await client.ask(ONE)
            assert (await client.read_answer()).status == 200


async def test_two_slots_of_an_endpoint_are_two_over_four_workers_and_all_are_answered(office: Office) -> None:
    desk = Desk()
    async with ScriptedEngine(desk.answer, port=office.engine_port):
        answers = await asyncio.gather(*(office.asked(model="two") for _ in range(60)))
    assert {answer.status for answer in answers} == {200}
    assert desk.most == 2


async def test_requests_of_a_minute_are_one_keys_at_whatever_worker(office: Office) -> None:
    async with ScriptedEngine(port=office.engine_port):
        answers = await asyncio.gather(*(office.asked(TEN) for _ in range(40)))
    assert Counter(answer.status for answer in answers) == {200: 10, 429: 30}


async def test_a_request_is_cancelled_by_its_id_from_any_worker(office: Office) -> None:
    desk = Desk()
    async with ScriptedEngine(desk.hold, port=office.engine_port), AsyncExitStack() as stack:
        holder, *others = (await office.spread(stack)).values()
        for number, client in enumerate(others):
            await holder.ask(f"x-request-id: r{number}", stream=True)
            await holder.read_head()
            cancel = f"POST /v1/cancel/r{number} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
            await client.send(cancel.encode())
            answer = await client.read_answer()
            assert (answer.status, answer.content["cancelled"]) == (200, 1)
            assert b"cancelled" in await read_stream(holder)
        assert (await office.get("/v1/cancel/none", "POST")).status == 404


async def test_lines_of_all_workers_are_whole_in_one_log(office: Office) -> None:
    async with ScriptedEngine(port=office.engine_port):

        async def ask_often(number: int) -> None:
            async with office.connected() as client:
                for turn in range(20):
                    await client.ask(f"x-request-id: line-{number}-{turn}-{'x' * 100}")
                    assert (await client.read_answer()).status == 200

        await asyncio.gather(*map(ask_often, range(16)))
        await until(lambda: office.log.read_bytes().count(b'"line-') >= 320)
    lines = [json.loads(line) for line in office.log.read_text().splitlines()]
    found = [line["request_id"] for line in lines if line["request_id"].startswith("line-")]
    assert len(set(found)) == len(found) == 320


async def test_any_workers_figures_are_the_whole_and_a_killed_workers_counts_stay(office: Office) -> None:
    """What was under way at it is over: its key and its slot are free again. Another one takes its place."""
    desk = Desk()
    requests = 'covey_gateway_requests_total{code="200",format="openai",model="two"}'
    prompts = 'covey_gateway_prompt_tokens_total{model="two"}'
    async with ScriptedEngine(answer_counted, port=office.engine_port) as engine:
        before = await office.figures()
        counted, tokens = before.get(requests, 0.0), before.get(prompts, 0.0)
        async with AsyncExitStack() as stack:
            clients = await office.spread(stack)
            for client in clients.values():
                await client.ask(ONE, model="two")
                assert (await client.read_answer()).status == 200
            for client in clients.values():

                async def has_all(client: RawClient = client) -> bool:
                    found = await office.figures(client)
                    is_all = found[requests] == counted + COUNT and found[prompts] == tokens + COUNT * 11
                    return is_all and found["covey_gateway_connections"] >= COUNT

                await until_true(has_all)

            engine.script = desk.hold
            killed, held = next(iter(clients.items()))
            await held.ask(ONE, model="two", stream=True)
            await held.read_head()
            assert (await office.asked(ONE, model="two")).status == 429
            assert (await office.figures())['covey_gateway_in_flight_requests{model="two"}'] == 1
            os.kill(killed, signal.SIGKILL)
            engine.script = answer_counted
            await until(lambda: any("was ended by signal 9" in line for line in office.lines))
        await until(lambda: len(office.workers) == COUNT and killed not in office.workers)
        async with AsyncExitStack() as stack:
            clients = await office.spread(stack)  # the new one has connections, too
            for client in clients.values():
                await client.ask(ONE, model="two")
                assert (await client.read_answer()).status == 200

        async def has_all_again() -> bool:
            found = await office.figures()
            in_flight = found['covey_gateway_in_flight_requests{model="two"}']
            return found[requests] == counted + 2 * COUNT and in_flight == 0

        await until_true(has_all_again)


async def test_a_stopped_gateway_ends_streams_at_all_workers_and_its_port_is_nobody_elses(tmp_path: Path) -> None:
    desk = Desk()
    async with ScriptedEngine(desk.hold) as engine, AsyncExitStack() as stack:
        table = write_table(tmp_path, engine.port)
        with running("--table", table) as office:
            flags = ("--table", table, "--listen", f"127.0.0.1:{office.port}", "--workers", "2")
            other = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "covey_gateway", *flags), stderr=subprocess.PIPE
            )
            _, words = await asyncio.wait_for(other.communicate(), 60)
            assert (other.returncode, "is taken by another process" in words.decode()) == (1, True)

            clients = await office.spread(stack)
            for client in clients.values():
                await client.ask(stream=True)
                await client.read_head()
            office.process.terminate()
            await until(lambda: sum("the gateway ends" in line for line in office.lines) == 2)
            desk.may_go.set()
            for client in clients.values():
                assert (await read_stream(client)).endswith(DONE)
            assert await asyncio.to_thread(office.process.wait, 60) == 0
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", office.port)


async def test_every_worker_shows_a_renewed_certificate(tmp_path: Path) -> None:
    one, other = write_pair(tmp_path, "one"), write_pair(tmp_path, "other")
    served = tmp_path / "served.pem", tmp_path / "served.key"
    for source, path in zip(one, served, strict=True):
        path.write_bytes(source.read_bytes())

    async def is_shown(office: Office, certificate: Path) -> bool:
        context = ssl.create_default_context(cafile=str(certificate))
        try:
            _, writer = await asyncio.open_connection("localhost", office.port, ssl=context)
        except ssl.SSLError:
            return False
        writer.transport.abort()
        return True

    flags = ("--table", write_table(tmp_path, 1), "--tls-cert", str(served[0]), "--tls-key", str(served[1]))
    with running(*flags) as office:
        assert all([await is_shown(office, one[0]) for _ in range(12)])
        for source, path in zip(other, served, strict=True):
            path.write_bytes(source.read_bytes())
        assert all([await is_shown(office, other[0]) for _ in range(24)])


async def test_where_the_kernel_spreads_nothing_all_accept_from_one_socket(tmp_path: Path) -> None:
    desk = Desk()
    async with ScriptedEngine(desk.answer) as engine:
        with running("--table", write_table(tmp_path, engine.port), program=("-c", ONE_SOCKET)) as office:
            answers = await asyncio.gather(*(office.asked(model="two") for _ in range(30)))
            assert {answer.status for answer in answers} == {200}
            assert desk.most == 2
            killed = office.workers[0]
            os.kill(killed, signal.SIGKILL)
            await until(lambda: len(office.workers) == 2 and killed not in office.workers)
            assert {(await office.asked()).status for _ in range(10)} == {200}
            office.process.terminate()
            assert await asyncio.to_thread(office.process.wait, 60) == 0


def make_endpoints(*engines: ScriptedEngine, keys: tuple[ClientKey, ...]) -> Endpoints:
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
            engine="",
            slots=2,
            context_tokens=2048,
        )
        for index, engine in enumerate(engines)
    )
    model = ServedModel(namespace="default", name="m", tasks=("Chat",), state=ModelState.READY)
    return Endpoints(term=1, serial=0, models=(model,), endpoints=endpoints, keys=keys, gateways=("gw", "gw-b"))


async def test_workers_are_one_gateway_to_the_controller(tmp_path: Path) -> None:
    """One table, one demand, one share of slots; usage is exact; a key that is revoked is so at every worker; a drain
    ends when no worker has anything left; what another gateway is asked to end is ended."""
    board: Any = FleetBoard(asyncio.get_running_loop().time)
    board.begin(1)
    desk = Desk()
    ann = ClientKey(namespace="default", name="ann", hash=HASH, concurrency=100)
    (tmp_path / "b").mkdir()
    async with (
        ScriptedEngine(answer_counted) as engine,
        running_fleet(tmp_path / "c", board) as rig,
        linked(tmp_path / "b", rig.url, await rig.token(CertificateRole.GATEWAY), "gw-b") as other,
        AsyncExitStack() as stack,
    ):
        (tmp_path / "token").write_text(await rig.token(CertificateRole.GATEWAY))
        flags = ("--controller", rig.url, "--token-file", str(tmp_path / "token"), "--state", str(tmp_path / "state"))
        office = await enter(stack, running(*flags, "--name", "gw"))

        def demand() -> Any:
            found = board.observed.gateways.get("gw")
            return None if found is None else found.demand

        def has_applied(serial: int) -> bool:
            found = demand()
            return found is not None and found.applied is not None and found.applied.serial == serial

        board.publish({}, make_endpoints(engine, keys=(ann,)))
        await until(lambda: has_applied(1))
        assert set(board.observed.gateways) == {"gw", "gw-b"}
        answers = await asyncio.gather(*(office.asked(BEARER) for _ in range(40)))
        assert {answer.status for answer in answers} == {200}

        def usage() -> Any:
            (found,) = [each[HASH] for each in board.usages.observe().values() if HASH in each] or [None]
            return found

        await until(lambda: usage() is not None and usage().requests == 40)
        assert (usage().prompt_tokens, usage().completion_tokens) == (40 * 11, 40 * 2)

        engine.script = desk.hold
        clients = list((await office.spread(stack)).values())
        for client in clients:  # two workers, two slots
            await client.ask("x-request-id: held", BEARER, stream=True)
            await client.read_head()
        board.publish({}, make_endpoints(keys=()))
        await until(lambda: has_applied(2))
        assert [each.in_flight for each in demand().endpoints] == [2]
        assert {(await office.asked(BEARER)).status for _ in range(12)} == {401}
        clients[0].leave()
        await until(lambda: [each.in_flight for each in demand().endpoints] == [1])
        await until(lambda: other.traffic.table.order.serial == 2)
        wish = Cancel(id="held", key="default/ann")
        assert await other.traffic.cancels.pass_on(wish) == 1
        assert b"cancelled" in await read_stream(clients[1])
        await until(lambda: sum(each.in_flight for each in demand().endpoints) == 0)

        board.publish({}, make_endpoints(engine, keys=(ann,)))
        await until(lambda: has_applied(3))
        engine.script = answer_counted
        killed = office.workers[0]
        os.kill(killed, signal.SIGKILL)
        await until(lambda: len(office.workers) == 2 and killed not in office.workers)
        await office.spread(stack)
        assert {(await office.asked(BEARER)).status for _ in range(13)} == {200}  # also by the new one's table
        office.process.terminate()
        assert await asyncio.to_thread(office.process.wait, 60) == 0
        assert usage().requests == 40 + 13  # what ended while there was no such key is nobody's
        assert usage().prompt_tokens == (40 + 13) * 11
