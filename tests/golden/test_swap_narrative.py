"""Two models with room for one, as `covey why` tells of it, and what is noted on the way."""

from conftest import Golden
from covey_api.kinds import ObjectKey
from covey_controller.reconcile.why import explain
from kit.clients import Clients, scaled


def test_swap_is_told_from_both_sides(golden: Golden) -> None:
    clients = Clients(scaled("chat"), scaled("code"))
    told = [_tell(clients, "nobody asks")]
    clients.ask("chat")
    clients.run(10)
    clients.ask("code")
    clients.run(10)
    told.append(_tell(clients, "'chat' has served for less than its minimum"))
    clients.run(25)
    told.append(_tell(clients, "'chat' has a request, and 'code' has waited for long"))
    clients.end("chat")
    clients.run(10)
    told.append(_tell(clients, "the request has ended"))
    notes = "".join(f"{note.key}: {note.reason}: {note.message}\n" for note in clients.story.notes)
    golden("why/swap.txt", "\n".join((*told, f"== noted\n{notes}")))


def _tell(clients: Clients, moment: str) -> str:
    texts = (
        explain(clients.story.observe(), clients.story.now, ObjectKey("Placement", "default", name))[0]
        for name in ("chat", "code")
    )
    return f"== {moment}\n" + "\n".join(texts)
