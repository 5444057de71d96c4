"""Who answers while nobody leads: nobody. A replica that knows of no leader says so, and ends the connection, so that
the next one meets whoever leads then."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from covey_controller.serving.answers import ApiError, ApiReason, render_error


def gate_by_lead(app: ASGIApp, is_leading: Callable[[], bool]) -> ASGIApp:
    """The app while this process leads; 503 otherwise."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if is_leading():
            await app(scope, receive, send)
            return
        error = ApiError(
            503,
            ApiReason.NOT_READY,
            "no controller leads this fleet at the moment; try again in a second",
            headers={"retry-after": "1", "connection": "close"},
        )
        await render_error(error)(scope, receive, send)

    return answer
