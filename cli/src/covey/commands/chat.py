"""`covey chat MODEL`: talk to a model through the gateway, as any OpenAI client would."""

import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import click
import httpx
from covey_api.text import escape_controls

from covey.commands.options import fleet_options_without
from covey.connect import Where, open_fleet
from covey.errors import CommandError, ExitCode

KEY_VARIABLE = "COVEY_API_KEY"
# A cold model is held for `holdSeconds`; a running one may prefill a long prompt for minutes.
READ_TIMEOUT_SECONDS = 600.0

_KEY_HINT = f". Here it comes from {KEY_VARIABLE}; `covey key create NAME` makes one"

ChatMessage = dict[str, str]


@click.command()
@click.argument("model")
@click.argument("prompt", nargs=-1)
@click.option("--url", "gateway", help="Address of the gateway; by default one of the fleet that is meant.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer.")
@fleet_options_without("url")
def chat(model: str, prompt: tuple[str, ...], gateway: str | None, max_tokens: int | None, where: Where) -> None:
    """Talk to MODEL. With PROMPT, or text on standard input, answer once; on a terminal, hold a conversation.

    The key, where one is needed, comes from COVEY_API_KEY.
    """
    with _open_gateway(gateway, where) as http:
        messages: list[ChatMessage] = []
        for text in _turns(prompt):
            messages.append({"role": "user", "content": text})
            answer = ""
            try:
                for piece in _stream_answer(http, model, messages, max_tokens):
                    answer += piece
                    # Raw into a file or a pipe; on a terminal a model must not be able to steer it.
                    click.echo(escape_controls(piece) if sys.stdout.isatty() else piece, nl=False)
                    sys.stdout.flush()
            finally:
                if answer:
                    click.echo()  # also before the words of what broke it off
            messages.append({"role": "assistant", "content": answer})


@contextmanager
def _open_gateway(address: str | None, where: Where) -> Generator[httpx.Client]:
    """A client of the gateway, while the way to it is open."""
    if address is not None:
        with _client(address, None) as http:
            yield http
        return
    with open_fleet(where) as fleet:
        found = fleet.find_gateway()
        with _client(found.url, found.socket) as http:
            yield http


def _client(url: str, socket: Path | None) -> httpx.Client:
    """The key goes in `x-api-key`: an API server in between takes `Authorization` for itself."""
    key = os.environ.get(KEY_VARIABLE)
    return httpx.Client(
        base_url=url,
        headers={"x-api-key": key} if key else {},
        timeout=httpx.Timeout(10.0, read=READ_TIMEOUT_SECONDS),
        transport=httpx.HTTPTransport(uds=str(socket)) if socket else None,
    )


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
                words = _error_text(response.text, response.status_code)
                raise CommandError(words + (_KEY_HINT if response.status_code == HTTPStatus.UNAUTHORIZED else ""), code)
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
        answer = json.loads(text)
        if answer.get("kind") == "Status":
            return f"no gateway answers through the cluster: {answer['message']}. If its pods run, their log says why."
        return f"{answer['error']['code']}: {answer['error']['message']}"
    except (AttributeError, ValueError, KeyError, TypeError):
        return f"the gateway answered {status}: {text[:300]}"
