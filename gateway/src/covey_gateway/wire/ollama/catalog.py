"""What Ollama tells of models: tags, show, ps, pull, load. Told of what is declared here, blank where nobody knows.

A Model without a tag is listed as `:latest`, which is how clients that think in tags ask for it. A digest is never
empty: Ollama's own command cuts twelve letters off it and ends in a panic where there are fewer.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from covey_gateway.wire.ollama.answer import render_time
from covey_gateway.wire.request import Listing

VERSION = "0.12.0"
"""The level of Ollama's API whose calls are answered; clients refuse servers that say less than they need."""

# What is declared stays loaded: clients read a time, and this one is as far as they all can.
_NEVER = "2318-01-01T00:00:00Z"
_DETAILS: dict[str, Any] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
_CAPABILITIES = {"Chat": ("completion", "tools"), "Embedding": ("embedding",), "Vision": ("vision",)}


def render_tags(models: Iterable[Listing]) -> dict[str, Any]:
    return {"models": [_render_tag(model) for model in models]}


def render_running(models: Iterable[Listing]) -> dict[str, Any]:
    """Those that are ready. Their memory is their nodes' to tell, not a client's."""
    more = {"expires_at": _NEVER, "size_vram": 0}
    return {
        "models": [
            _render_tag(model) | more | {"context_length": model.context_tokens or 0}
            for model in models
            if model.is_ready
        ]
    }


def _render_tag(model: Listing) -> dict[str, Any]:
    name = render_name(model.name)
    return {
        "name": name,
        "model": name,
        "modified_at": render_time(model.created),
        "size": model.weights_bytes,
        "digest": model.weights_digest or _digest_declaration(model),
        "details": _DETAILS,
    }


def _digest_declaration(model: Listing) -> str:
    """What is known of one whose weights nobody has read: that it was declared, and when."""
    return hashlib.sha256(f"{model.name}\n{model.created}".encode()).hexdigest()


def render_name(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def tell_shown(model: Listing) -> bytes:
    known = {"general.architecture": "covey"}
    window = {"covey.context_length": model.context_tokens} if model.context_tokens else {}
    return msgspec.json.encode(
        {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "license": "",
            "modified_at": render_time(model.created),
            "details": _DETAILS,
            "model_info": known | window,
            "capabilities": [one for task in model.tasks or ("Chat",) for one in _CAPABILITIES.get(task, ())],
        }
    )


def tell_pulled(model: Listing) -> bytes:
    return b'{"status":"success"}'


def tell_pulled_lines(model: Listing) -> bytes:
    return b'{"status":"pulling manifest"}\n{"status":"success"}\n'


def tell_loaded_chat(model: Listing) -> bytes:
    return _tell_loaded(model, {"message": {"role": "assistant", "content": ""}})


def tell_loaded_text(model: Listing) -> bytes:
    return _tell_loaded(model, {"response": ""})


def _tell_loaded(model: Listing, piece: dict[str, Any]) -> bytes:
    head = {"model": model.name, "created_at": render_time(model.created)}
    reason = "load" if model.is_ready else "unload"
    return msgspec.json.encode(head | piece | {"done": True, "done_reason": reason}) + b"\n"
