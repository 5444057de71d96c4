"""What the way by a keeper's TLS front costs, beside plain loopback in one run. One JSON line a figure.

A stub engine, the real keeper in front of it, and two gateways: one that goes straight, one that goes by the front. The
keeper's own child sleeps; what listens on the engine's port is the stub. CPU is each process's own, from /proc.
"""

import asyncio
import json
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvloop
from covey_agent.keeper.joining import FrontSettings
from covey_agent.keeper.keepers import ProcessKeepers
from covey_agent.ports import Launch
from covey_api.messages import CertificateRole, ModelState, Order, ServedModel, render_front_name
from covey_controller.authority import Authority
from covey_controller.stores.files.vault import FilesVault
from covey_controller.trust import ensure_authority
from covey_fleet_client.files import ensure_private_folder, write_private
from covey_fleet_client.identity import load_identity
from covey_gateway.fronts import Fronts
from covey_gateway.images import Images
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.table import Front, Target, build_table
from covey_gateway.server import GatewayServer, bind_socket
from covey_gateway.traffic import Traffic
from covey_gateway.upstream import Engines
from measures.load import (
    CHUNKS,
    CPU_CONNECTIONS,
    CPU_REQUESTS,
    CPU_STREAMS,
    Address,
    measure_cpu,
    read_cpu_seconds,
    read_pss_mib,
    render_request,
    started,
)

ADDRESS = "127.0.0.2"
IDS = {"stub": "00000000000000aa", "flood": "00000000000000bb", "none": "00000000000000cc"}
FLOOD_MIB = 128
HANDSHAKES = 200
MIB = 1024 * 1024


def serve_flood() -> None:
    """Whoever says a byte gets `FLOOD_MIB`."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    piece = bytes(MIB)
    while True:
        peer, _ = listener.accept()
        with peer:
            if peer.recv(1):
                for _ in range(FLOOD_MIB):
                    peer.sendall(piece)


async def serve_gateway(engine_port: int, front_port: int, identity: Path) -> None:
    """A gateway with one endpoint; by the front if a port of one is given."""
    loop = asyncio.get_running_loop()
    front = Front(ADDRESS, front_port, render_front_name(IDS["stub"], 1), "a") if front_port else None
    target = Target(
        IDS["stub"], IDS["stub"], "default", "m", "127.0.0.1", engine_port, "", 64, 1, None, True, front=front
    )
    model = ServedModel(namespace="default", name="m", tasks=("Chat",), state=ModelState.READY)
    traffic = Traffic(AccessPolicy(needs_local_origin=False, needs_key=False), loop.time)
    traffic.apply_table(build_table(Order(term=0, serial=0), [model], [target], []))
    bound = bind_socket("127.0.0.1", 0)
    async with asyncio.TaskGroup() as tasks:
        images = Images(tasks.create_task)
        server = GatewayServer(traffic, Engines(loop, tasks.create_task, Fronts(identity)), images)
        await server.start(bound)
        print(f"listening on http://127.0.0.1:{bound.getsockname()[1]}", file=sys.stderr, flush=True)
        await server.sweep()


def write_identity(folder: Path, authority: Authority, role: CertificateRole, name: str) -> Path:
    ensure_private_folder(folder)
    certificate = authority.issue_client(load_identity(folder).key.public_key(), role, name, time.time())
    write_private(folder / "certificate.pem", certificate)
    write_private(folder / "authorities.pem", authority.bundle_pem)
    return folder


@asynccontextmanager
async def keeping(folder: Path, node: Path | None, name: str, port: int) -> AsyncGenerator[tuple[int, int]]:
    """A keeper before this port: its process id, and its front's port. No node: without a front."""
    keepers = ProcessKeepers(folder, 60, lambda: FrontSettings(ADDRESS, node) if node else None)
    process = await keepers.start(IDS[name], 1, port, Launch(("/bin/sleep", "600"), {}, ()))
    pid = int(json.loads((folder / IDS[name] / "keeper.json").read_text())["pid"])
    try:
        yield pid, process.front_port
    finally:
        await keepers.stop(IDS[name], 1)
        await keepers.wait_exit(IDS[name])
        await keepers.release(IDS[name])


@contextmanager
def gateway(engine_port: int, front_port: int, identity: Path) -> Generator[tuple[int, Address]]:
    with started(__file__, "gateway", str(engine_port), str(front_port), str(identity)) as found:
        yield found


def make_context(identity: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(identity / "authorities.pem")
    context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
    return context


def measure_flood(peer: socket.socket) -> float:
    """MiB a second that this reader gets."""
    buffer = bytearray(256 * 1024)
    began, left = time.perf_counter(), FLOOD_MIB * MIB
    with peer:
        peer.sendall(b"x")
        while left:
            left -= peer.recv_into(buffer)
    return FLOOD_MIB / (time.perf_counter() - began)


def emit(figure: str, value: float, **conditions: object) -> None:
    print(json.dumps({"bench": "front", "figure": figure, "value": round(value, 3)} | conditions), flush=True)


async def measure_requests(stub: Address, keeper: int, front_port: int, identity: Path) -> None:
    """CPU of the gateway straight and by the front, and of the keeper, for the same requests."""
    shapes = {
        "request": (render_request("m", stream=False, max_tokens=1), CPU_REQUESTS),
        f"stream_of_{CHUNKS + 1}": (render_request("m", stream=True, max_tokens=CHUNKS + 1), CPU_STREAMS),
    }
    with gateway(stub[1], 0, identity) as (plain, straight), gateway(stub[1], front_port, identity) as (pid, through):
        for shape, (request, count) in shapes.items():
            emit(f"gateway_cpu_per_{shape}_us", await measure_cpu(plain, straight, request, count), way="plain")
            before = read_cpu_seconds(keeper)
            emit(f"gateway_cpu_per_{shape}_us", await measure_cpu(pid, through, request, count), way="front")
            spent = (read_cpu_seconds(keeper) - before) / (count + CPU_CONNECTIONS) * 1e6
            emit(f"keeper_cpu_per_{shape}_us", spent, way="front")
    emit("keeper_pss_mib", read_pss_mib(keeper), way="front", after="requests")


def measure_bytes(flood: Address, keeper: int, front_port: int, identity: Path) -> None:
    context, name = make_context(identity), render_front_name(IDS["flood"], 1)

    def dial() -> ssl.SSLSocket:
        return context.wrap_socket(socket.create_connection((ADDRESS, front_port)), server_hostname=name)

    emit("mib_per_second", measure_flood(socket.create_connection(flood)), way="plain")
    before = read_cpu_seconds(keeper)
    emit("mib_per_second", measure_flood(dial()), way="front")
    emit("keeper_cpu_per_mib_ms", (read_cpu_seconds(keeper) - before) / FLOOD_MIB * 1000, way="front")
    before, began = read_cpu_seconds(keeper), time.perf_counter()
    for _ in range(HANDSHAKES):
        dial().close()
    emit("connection_ms", (time.perf_counter() - began) / HANDSHAKES * 1000, way="front", with_handshake=True)
    emit("keeper_cpu_per_connection_us", (read_cpu_seconds(keeper) - before) / HANDSHAKES * 1e6, way="front")


async def measure(folder: Path) -> None:
    authority = await ensure_authority(FilesVault(folder / "controller"), time.time())
    node = write_identity(folder / "agent", authority, CertificateRole.AGENT, "a")
    identity = write_identity(folder / "gateway", authority, CertificateRole.GATEWAY, "gw")
    members = folder / "members"
    with (
        started(str(Path(__file__).with_name("gateway.py")), "stub") as (_, stub),
        started(__file__, "flood") as (_, flood),
    ):
        async with (
            keeping(members, None, "none", stub[1]) as (bare, _),
            keeping(members, node, "stub", stub[1]) as (keeper, port),
            keeping(members, node, "flood", flood[1]) as (second, flood_port),
        ):
            emit("keeper_pss_mib", read_pss_mib(bare), way="plain", after="start")
            emit("keeper_pss_mib", read_pss_mib(keeper), way="front", after="start")
            await measure_requests(stub, keeper, port, identity)
            await asyncio.to_thread(measure_bytes, flood, second, flood_port, identity)


def main() -> None:
    match sys.argv[1:]:
        case ["flood"]:
            serve_flood()
        case ["gateway", engine_port, front_port, identity]:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve_gateway(int(engine_port), int(front_port), Path(identity)))
        case _:
            with tempfile.TemporaryDirectory(prefix="cv") as folder:
                asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
