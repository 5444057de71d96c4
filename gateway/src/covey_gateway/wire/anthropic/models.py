"""Models as Anthropic lists them, for clients that say they speak its version."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from covey_gateway.wire.request import Listing


def render_model(model: Listing) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": created,
        # The window is for both together: either may have all of it.
        "max_input_tokens": model.context_tokens,
        "max_tokens": model.context_tokens,
        "capabilities": None,
        "lifecycle": "active",
    }


def render_page(models: Sequence[Listing]) -> dict[str, Any]:
    """All of them are one page."""
    rendered = [render_model(model) for model in models]
    ids = [model.name for model in models] or [None]
    return {"data": rendered, "has_more": False, "first_id": ids[0], "last_id": ids[-1]}
