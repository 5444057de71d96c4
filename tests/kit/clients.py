"""Clients in virtual time: they ask one gateway of a `Worldlet`, and are held while a Model isn't routed."""

from covey_api.placement import ContextWish, Placement, Scaling

from kit import builders
from kit.worlds import FakeGateway, Worldlet

# Beside the node's reserve of a GiB there is room for one replica of 4 slots of 8192 tokens.
ONE_BYTES = 2_500_000_000
# As a gateway tells of it.
HEARD_LATELY = 60


def scaled(name: str, priority: int = 0, **scaling: object) -> Placement:
    """A Placement that runs as it is asked for."""
    return builders.placement(
        name, context=ContextWish(tokens=8192), priority=priority, scaling=Scaling.model_validate(scaling)
    )


class Clients:
    """Ask one gateway of a small fleet. A request is held until its Model is routed, then in flight until it is
    ended."""

    def __init__(self, *placements: Placement, total_bytes: int = ONE_BYTES) -> None:
        self.story = Worldlet()
        self.gateway = self.story.gateways["g"] = FakeGateway()
        self.story.put(*placements, *(builders.model(each.metadata.name) for each in placements))
        self.story.add_agents("a", total_bytes=total_bytes)
        self.asking: set[str] = set()
        self.loads: list[str] = []
        self.story.run(15)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            routed = {each.rsplit("-", 1)[0] for each in self.story.routed()}
            gateway = self.gateway
            gateway.heard = {each: age + 1 for each, age in gateway.heard.items() if age < HEARD_LATELY}
            gateway.held = {n: gateway.held.get(n, 0.0) + 1 for n in sorted(self.asking - routed - self.busy())}
            for each in self.story.instances():
                if each.spec.model in self.asking & routed:
                    gateway.in_flight[each.spec.instance_id] = 1
            before = {each.spec.instance_id for each in self.story.instances()}
            self.story.step()
            now = {each.spec.instance_id: each.spec.model for each in self.story.instances()}
            self.loads += [now[each] for each in sorted(now.keys() - before)]
            running = {each.spec.instance_id for each in self.story.instances()}
            assert set(gateway.in_flight) <= running, "nothing stops with a request on it"

    def ask(self, *names: str) -> None:
        self.asking |= set(names)

    def end(self, *names: str) -> None:
        self.asking -= set(names)
        for each in self.story.instances():
            if each.spec.model in names and self.gateway.in_flight.pop(each.spec.instance_id, None):
                self.gateway.heard[each.spec.instance_id] = 0.0

    def busy(self) -> set[str]:
        """Models with requests in flight."""
        flying = self.gateway.in_flight
        return {each.spec.model for each in self.story.instances() if each.spec.instance_id in flying}
