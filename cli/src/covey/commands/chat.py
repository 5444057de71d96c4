"""`covey chat MODEL`: talk to a model through the gateway, as any OpenAI client would."""

import json
import os
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import click
import httpx
from covey_api.text import escape_controls

from covey.commands.options import open_control, state_option
from covey.errors import CommandError, ExitCode

KEY_VARIABLE = "COVEY_API_KEY"
# A cold model answers 503 at once; a running one may prefill a long prompt for minutes.
READ_TIMEOUT_SECONDS = 600.0

ChatMessage = dict[str, str]


@click.command()
@click.argument("model")
@click.argument("prompt", nargs=-1)
@click.option("--url", help="Address of the gateway; by default that of the running Covey.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer.")
@state_option
def chat(model: str, prompt: tuple[str, ...], url: str | None, max_tokens: int | None, state: Path) -> None:
    """Talk to MODEL. With PROMPT, or text on standard input, answer once; on a terminal, hold a conversation.

    The key, where one is needed, comes from COVEY_API_KEY.
    """
    gateway = url or _find_gateway(state)
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(10.0, read=READ_TIMEOUT_SECONDS)
    with httpx.Client(base_url=gateway, headers=headers, timeout=timeout) as http:
        messages: list[ChatMessage] = []
        for text in _turns(prompt):
            messages.append({"role": "user", "content": text})
            answer = ""
            for piece in _stream_answer(http, model, messages, max_tokens):
                answer += piece
                # Raw into a file or a pipe; on a terminal a model must not be able to steer it.
                click.echo(escape_controls(piece) if sys.stdout.isatty() else piece, nl=False)
                sys.stdout.flush()
            click.echo()
            messages.append({"role": "assistant", "content": answer})


def _find_gateway(state: Path) -> str:
    with open_control(state) as control:
        gateways = control.list_gateways()
    for gateway in gateways:
        if gateway.get("connected") and gateway.get("address"):
            return str(gateway["address"])
    raise CommandError("no gateway is connected to this Covey yet; try again, or give --url")


def _turns(prompt: tuple[str, ...]) -> Iterator[str]:
    if prompt:
        yield " ".join(prompt)
        return
    if not sys.stdin.isatty():
        if text := sys.stdin.read().strip():
            yield text
        return
    click.echo("Type a message; an empty line or Ctrl-D ends.", err=True)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            return
        if not text:
            return
        yield text


def _stream_answer(
    http: httpx.Client, model: str, messages: list[ChatMessage], max_tokens: int | None
) -> Iterator[str]:
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    try:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                response.read()
                code = ExitCode.NOTHING_MATCHED if response.status_code == HTTPStatus.NOT_FOUND else ExitCode.FAILED
                raise CommandError(_error_text(response.text, response.status_code), code)
            for line in response.iter_lines():
                payload = line.removeprefix("data: ")
                if payload == line or payload == "[DONE]":
                    continue
                yield from _content_of(json.loads(payload))
    except httpx.TransportError as error:
        raise CommandError(f"the gateway at {http.base_url} broke off: {error}") from error


def _content_of(chunk: dict[str, Any]) -> Iterator[str]:
    if "error" in chunk:
        raise CommandError(str(chunk["error"].get("message", chunk["error"])))
    for choice in chunk.get("choices", ()):
        if content := choice.get("delta", {}).get("content"):
            yield cast(str, content)


def _error_text(text: str, status: int) -> str:
    try:
        error = json.loads(text)["error"]
        return f"{error['code']}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {status}: {text[:300]}"
