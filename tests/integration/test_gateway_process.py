"""The gateway as a process: flags, refusals to start, signals, lifeline."""

import asyncio
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from covey_gateway.limits import DRAIN_SECONDS
from integration.gateway_rig import DONE, LAST_CHUNK, STREAM_HEAD, Call, ScriptedEngine, chunk, token

pytestmark = [pytest.mark.integration]

SECRET = "sk-covey-test"
HASH = "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()


def write_table(folder: Path, *, has_key: bool = False, port: int = 1) -> Path:
    document: dict[str, object] = {"models": [{"name": "m", "endpoints": [{"url": f"http://127.0.0.1:{port}"}]}]}
    if has_key:
        document["keys"] = [{"name": "ann", "hash": HASH}]
    path = folder / "table.json"
    path.write_text(json.dumps(document))
    return path


def start(*arguments: str, pass_fds: tuple[int, ...] = (), files: int | None = None) -> subprocess.Popen[str]:
    """`files`: how many descriptors the process may have."""
    limited = ("/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh") if files is not None else ()
    command = (*limited, sys.executable, "-m", "covey_gateway", *arguments)
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=pass_fds)


@contextmanager
def running(
    *arguments: str, pass_fds: tuple[int, ...] = (), files: int | None = None
) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, once it listens."""
    process = start(*arguments, pass_fds=pass_fds, files=files)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if " listening on " in line:
                yield process, line.split()[-1]
                break
        else:
            raise AssertionError("the gateway ended before it listened")
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()


def refusal(*arguments: str) -> tuple[int, str]:
    process = start(*arguments)
    _, words = process.communicate(timeout=30)
    return process.returncode, words


@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")])
def test_a_gateway_serves_its_table_and_ends_on_a_signal(tmp_path: Path, number: int, name: str) -> None:
    with running("--table", str(write_table(tmp_path)), "--listen", "127.0.0.1:0") as (process, url):
        assert httpx.get(f"{url}/readyz", timeout=30).status_code == 200
        assert [model["id"] for model in httpx.get(f"{url}/v1/models", timeout=30).json()["data"]] == ["m"]
        process.send_signal(number)
        assert process.wait(30) == 0


def test_a_gateway_ends_when_its_parents_pipe_ends(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    arguments = ("--table", str(write_table(tmp_path)), "--listen", "127.0.0.1:0", "--lifeline", str(read_end))
    with running(*arguments, pass_fds=(read_end,)) as (process, _):
        os.close(read_end)
        start_time = time.monotonic()
        os.close(write_end)
        assert process.wait(30) == 0
        assert time.monotonic() - start_time < 30


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, words = refusal("--table", str(write_table(tmp_path)), "--listen", f"127.0.0.1:{port}")
    assert code == 1
    assert f"port {port} on 127.0.0.1 is taken" in words
    assert "Traceback" not in words


def test_a_gateway_that_others_reach_needs_keys(tmp_path: Path) -> None:
    code, words = refusal("--table", str(write_table(tmp_path)), "--listen", "0.0.0.0:0")
    assert code == 1
    assert "must have `keys`" in words
    assert "`--insecure`" in words
    with running("--table", str(write_table(tmp_path)), "--listen", "0.0.0.0:0", "--insecure") as (_, url):
        port = url.rsplit(":", 1)[1]
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"host": "llm.example"}, timeout=30)
        assert answer.status_code == 200
    with running("--table", str(write_table(tmp_path, has_key=True)), "--listen", "0.0.0.0:0") as (_, url):
        local = f"http://127.0.0.1:{url.rsplit(':', 1)[1]}"
        with httpx.Client(base_url=local, timeout=30) as client:
            assert client.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
            headers = {"authorization": f"Bearer {SECRET}"}
            assert client.get("/v1/models", headers=headers).status_code == 200


def test_a_table_with_a_fault_is_refused_with_its_field(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("models: [{name: m, endpoints: [{url: 'http://127.0.0.1:1', slot: 3}]}]")
    code, words = refusal("--table", str(path), "--listen", "127.0.0.1:0")
    assert code == 1
    assert f"{path}: `models[0].endpoints[0].slot` is no field of a table; remove it" in words
    assert refusal("--table", str(tmp_path / "none"), "--listen", "127.0.0.1:0")[0] == 1


@pytest.mark.parametrize(
    "arguments", [(), ("--table", "x", "--controller", "y"), ("--table", "x", "--listen", "8000"), ("--listen", "a:1")]
)
def test_wrong_use_has_its_own_exit_code(arguments: tuple[str, ...]) -> None:
    assert refusal(*arguments)[0] == 2


def test_a_bad_token_without_a_table_ends_with_words(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("not-a-token")
    arguments = ("--controller", "https://127.0.0.1:1", "--token-file", str(token), "--state", str(tmp_path / "state"))
    code, words = refusal(*arguments, "--listen", "127.0.0.1:0")
    assert code == 1
    assert "holds no join token" in words
    assert "not-a-token" not in words


@pytest.mark.anyio
async def test_clients_that_take_every_descriptor_leave_some_for_engines(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, AsyncExitStack() as stack:
        table = write_table(tmp_path, port=engine.port)
        _, url = stack.enter_context(running("--table", str(table), "--listen", "127.0.0.1:0", files=200))
        host, _, port = url.removeprefix("http://").rpartition(":")
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, timeout=30) as client:
            assert (await client.get("/v1/models")).status_code == 200  # one of its connections stays open
            for _ in range(300):
                idle = stack.enter_context(socket.socket())
                idle.setblocking(False)
                await asyncio.get_running_loop().sock_connect(idle, (host, int(port)))
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            for _ in range(3):
                answer = await client.post("/v1/chat/completions", json=body, timeout=30)
                assert answer.status_code == 200, answer.text


@pytest.mark.anyio
async def test_streams_end_by_themselves_within_the_seconds_that_a_stop_gives_them(tmp_path: Path) -> None:
    """Longer than a gateway gives without being told; one that gives none ends them at once, with words."""
    goes_on = asyncio.Event()

    async def answer(call: Call) -> None:
        await call.write(STREAM_HEAD, chunk(token("a")))
        await goes_on.wait()
        await call.write(chunk(token("b")), chunk(DONE), LAST_CHUNK)

    async with ScriptedEngine(answer) as engine, AsyncExitStack() as stack:
        table = write_table(tmp_path, port=engine.port)

        async def begin(*flags: str) -> tuple[subprocess.Popen[str], str, asyncio.Task[str]]:
            process, url = stack.enter_context(running("--table", str(table), "--listen", "127.0.0.1:0", *flags))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False, timeout=120))
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            stream = await stack.enter_async_context(client.stream("POST", "/v1/chat/completions", json=body))
            lines = stream.aiter_lines()
            assert '"content":"a"' in (await anext(lines)).replace(" ", "")

            async def read() -> str:
                return "\n".join([line async for line in lines])

            return process, url, asyncio.ensure_future(read())

        async def ended(process: subprocess.Popen[str]) -> int:
            return await asyncio.to_thread(process.wait, 60)

        started = [await begin("--drain-seconds", "300"), await begin("--drain-seconds", "300", "--workers", "2")]
        hasty, _, cut_off = await begin("--drain-seconds", "0")
        for process in (hasty, *(process for process, _, _ in started)):
            process.send_signal(signal.SIGTERM)
        assert "the gateway is stopping" in await cut_off
        assert await ended(hasty) == 0
        await asyncio.sleep(DRAIN_SECONDS + 2)
        for process, url, _ in started:
            assert process.poll() is None
            async with httpx.AsyncClient(trust_env=False) as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get(f"{url}/healthz")
        goes_on.set()
        for process, _, reading in started:
            rest = await reading
            assert '"content":"b"' in rest.replace(" ", "")
            assert rest.rstrip().endswith("data: [DONE]")
            assert '"error"' not in rest
            assert await ended(process) == 0
