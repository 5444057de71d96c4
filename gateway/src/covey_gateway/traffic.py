"""What all connections share: the routing table, loads of endpoints, held bytes. One event loop, no locks.

It knows who may ask and who answers, nothing of sockets or formats. Serving depends on nothing but this: a table that
was applied stays in force until another one comes.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from email.utils import formatdate
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from covey_api.messages import EndpointDemand, ModelDemand, Order, ServedModel
from covey_api.reasons import ErrorCode

from covey_gateway.accounts import Accounts
from covey_gateway.cancels import Cancels
from covey_gateway.figures import Present
from covey_gateway.ledger import Ledger
from covey_gateway.limits import FAILURES_ASIDE, LEFT_PROMPT_SECONDS, MAX_BODIES_BYTES, SILENT_ENDPOINT_SECONDS
from covey_gateway.lines import Lines
from covey_gateway.routing.access import AccessPolicy
from covey_gateway.routing.affinity import Homes
from covey_gateway.routing.choose import NoneFree, choose_target
from covey_gateway.routing.conversation import digest_conversation
from covey_gateway.routing.line import Ticket
from covey_gateway.routing.load import Load, Owed, judge_failure, set_aside
from covey_gateway.routing.refusals import (
    refuse_media,
    refuse_none_free,
    refuse_task,
    refuse_unknown,
    refuse_unready,
    refuse_window,
)
from covey_gateway.routing.table import Caller, PlainRoute, RoutingTable, Target
from covey_gateway.waiting import Waiting
from covey_gateway.wire.allowances import RenderAllowances
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.request import TAG, TASKS, Call, Listing, Request

if TYPE_CHECKING:
    from covey_gateway.workers.endpoints import SharedEndpoints
    from covey_gateway.workers.shared import Shared

_log = logging.getLogger(__name__)

# An endpoint that gave its last byte this long ago is still told of: a few demands may be lost.
HEARD_LATELY_SECONDS = 60.0
# Where there are no other workers.
_ALONE = nullcontext()


class Awaiting(Protocol):
    """A request at an endpoint, as far as its silence goes. Times are the clock's."""

    @property
    def last_byte_at(self) -> float | None: ...

    @property
    def silent_since(self) -> float | None:
        """Since when the engine owes a byte; None while it owes none."""
        ...

    @property
    def needs_slot(self) -> bool:
        """Whether it is answered in one of the engine's slots, or beside them."""
        ...


class Traffic:
    """`clock` is monotonic, `wall` seconds since the epoch. `shared`: what other workers of this gateway share."""

    def __init__(
        self,
        policy: AccessPolicy,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        shared: "Shared | None" = None,
    ) -> None:
        self.policy = policy
        self.table = RoutingTable()
        self.has_table = False
        """Whether a table was applied."""
        self.date = b""
        """The HTTP date, kept by the sweep."""
        self.cancels = Cancels()
        self._endpoints = None if shared is None else shared.endpoints
        self.lines = Lines(clock) if self._endpoints is None else Lines(clock, self._endpoints.line)
        self.accounts = Accounts(clock, wall, None if shared is None else shared.keys)
        self.ledger = Ledger(clock, self.accounts.charge)
        if shared is not None:
            self.ledger.figures = shared.figures
        self._wall = wall
        self._clock = clock
        self._loads: dict[str, Load] = {}
        self._awaiting: dict[str, list[Awaiting]] = {}
        self._instances: dict[str, str] = {}
        self._departed: set[str] = set()
        self._left: set[str] = set()
        """Endpoints of which a client left a prompt that is perhaps read still."""
        self._turn = self._trials = 0
        self._homes = Homes()
        self._body_bytes = 0
        self._path_failures: dict[str, str] = {}
        self._on_news: Callable[[], None] = lambda: None
        self.waiting = Waiting(clock, lambda: self._on_news())
        """Requests for models that are not ready."""

    def now(self) -> float:
        return self._clock()

    @property
    def is_ready(self) -> bool:
        """Whether anybody can be served: there is a table, and a key where one is needed."""
        return self.has_table and (bool(self.table.keys) or not self.policy.needs_key)

    def watch_news(self, on_news: Callable[[], None]) -> None:
        """Call this when the controller should hear of something at once.

        That is: an endpoint that left the table has nothing in flight any more, one is set aside, a way was lost or
        found, or somebody waits for a model.
        """
        self._on_news = on_news

    def name_gateway(self, name: str) -> None:
        """How the controller calls this gateway: shares are by name."""
        self.accounts.name_gateway(name, self.table)
        self.lines.sharers = self.accounts.count_sharers(self.table)

    def set_path_failures(self, failures: dict[str, str]) -> None:
        """By instance, why there is no way to it."""
        if failures != self._path_failures:
            self._path_failures = failures
            self._on_news()

    def apply_table(self, table: RoutingTable) -> frozenset[str]:
        """Route by this table from now on. Gives the ids of endpoints that left."""
        before = {target.id for targets in self.table.targets.values() for target in targets}
        now = {target.id: target for targets in table.targets.values() for target in targets}
        self.table = table
        self.has_table = True
        self._instances |= {id_: target.instance_id for id_, target in now.items()}
        self._departed = {id_ for id_ in self._loads if id_ not in now}
        for id_ in [id_ for id_ in self._departed if not self._loads[id_].in_flight]:
            self._forget(id_)
        for id_ in [id_ for id_ in self._instances if id_ not in now and id_ not in self._loads]:
            del self._instances[id_]
        self._homes.keep_only(now)
        self.accounts.apply_table(table)
        self.lines.sharers = self.accounts.count_sharers(table)
        self.waiting.tell(self.table)
        for id_ in before - now.keys():
            self._move_line(id_)
        self.lines.look_again()
        return frozenset(before - now.keys())

    def find_model(self, caller: Caller, request: Request) -> ServedModel | ApiError:
        """The model that a request is for, if it does what is asked and has the window for it."""
        model = self.resolve(caller, request.model)
        if isinstance(model, ApiError):
            return model
        if (error := refuse_task(model, TASKS[request.call]) or refuse_media(model, request.media)) is not None:
            return error
        if request.unknown is not None and not model.passes_unknown_fields:
            return request.unknown
        return refuse_window(model, request, self.window_of(model)) or model

    def find_plain(self, caller: Caller, name: str) -> PlainRoute | None:
        """Where chats for this name go, while this table is in force; None: nowhere, or not without more ado."""
        model = self.resolve(caller, name)
        if isinstance(model, ApiError) or refuse_task(model, TASKS[Call.CHAT]) is not None:
            return None
        key = (model.namespace, model.name)
        targets = self.table.targets.get(key, ())
        has_pool = any(target.kv_tokens for target in targets)
        return PlainRoute(model, targets, self.table.windows.get(key), has_pool) if targets else None

    def list_models(self, caller: Caller) -> list[Listing]:
        """What this caller may ask for."""
        return [self.render_listing(name, model) for name, model in self.table.names_for(caller).items()]

    def render_listing(self, name: str, model: ServedModel) -> Listing:
        weights = (model.weights_bytes, model.weights_digest)
        return Listing(name, model.created, model.tasks, bool(self.targets_of(model)), self.window_of(model), *weights)

    def targets_of(self, model: ServedModel) -> tuple[Target, ...]:
        return self.table.targets.get((model.namespace, model.name), ())

    def window_of(self, model: ServedModel) -> int | None:
        """The widest window that an endpoint has."""
        return self.table.windows.get((model.namespace, model.name))

    def resolve(self, caller: Caller, asked: str) -> ServedModel | ApiError:
        """By the name as it is, for an alias may have a tag; else without `:latest`."""
        model = self.table.resolve(caller, asked)
        if model is None and asked.endswith(TAG):
            model = self.table.resolve(caller, asked.removesuffix(TAG))
        return refuse_unknown(asked, self.table.names_for(caller)) if model is None else model

    def take(
        self,
        model: ServedModel,
        excluded: str | None = None,
        request: Request | None = None,
        session: bytes = b"",
        owner: str = "",
        ticket: Ticket | None = None,
    ) -> Target | ApiError:
        """An endpoint for one request, counted as in flight there until `release`.

        `request`, `session`, `owner` (its key): by what it is known which conversation it continues. `ticket`: whose
        place it may take in line where all are full.
        """
        key = (model.namespace, model.name)
        model = self.table.models.get(key, model)
        targets = self.table.targets.get(key, ())
        if not targets:
            return refuse_unready(model)
        conversation = None
        if request is not None and len(targets) > 1:
            conversation = digest_conversation(request, key, session, owner)
        return self.take_one(model, targets, conversation, owner, ticket, excluded)

    def take_one(
        self,
        model: ServedModel,
        targets: tuple[Target, ...],
        conversation: int | None,
        owner: str,
        ticket: Ticket | None,
        excluded: str | None = None,
    ) -> Target | ApiError:
        """The same where it is known which endpoints there are, and which conversation it is."""
        now = self._clock()
        if self._endpoints is not None:
            for target in targets:
                load = self._loads.get(target.id)
                if load is None:
                    load = self._loads[target.id] = Load()
                load.elsewhere = self._endpoints.count_elsewhere(target.id)
                self._endpoints.look_aside(target.id, load)
        if self._left:
            for target in targets:
                self._end_left(target.id, now)
        largest = self.table.sizes.get((model.namespace, model.name), 0)
        chosen = choose_target(targets, self._loads, now, self._turn, excluded, conversation, self._homes, largest)
        if isinstance(chosen, NoneFree) and chosen.is_full and ticket is not None:
            displaced = self.lines.displace([each for each in targets if each.id != excluded], ticket)
            if displaced is not None:
                displaced.lose_place()
                chosen = choose_target(targets, self._loads, now, self._turn, excluded, conversation, self._homes)
        if isinstance(chosen, NoneFree):
            return refuse_none_free(model, chosen)
        load = self._loads.get(chosen.id)
        if load is None:
            load = self._loads[chosen.id] = Load()
        if load.aside is not None:
            trial = self._try(chosen, load, now)
            if trial is None:  # another worker's request is faster
                return self.take_one(model, targets, conversation, owner, ticket, excluded)
            chosen = trial
        if conversation is not None and not self._is_away(conversation, chosen):
            self._homes.remember(conversation, chosen.id, now, owner)
        self._turn += 1
        load.in_flight += 1
        if self._endpoints is not None:
            self._endpoints.tell_in_flight(chosen.id, load.in_flight)
        return chosen

    def _try(self, chosen: Target, load: Load, now: float) -> Target | None:
        """The endpoint as the request gets it that tries it, the only one; None: another one does."""
        with self._changing(chosen.id, load):
            if load.aside is None:
                return chosen
            if load.aside.blocks(now):
                return None
            self._trials += 1
            load.trial = self._trials
            load.aside = replace(load.aside, is_probed=True)
        return replace(chosen, trial=load.trial)

    def _look(self, id_: str) -> Load:
        """What is known of an endpoint, from other workers too."""
        load = self._loads[id_]
        if self._endpoints is not None:
            self._endpoints.look_aside(id_, load)
        return load

    def _changing(self, id_: str, load: Load) -> AbstractContextManager[None]:
        """Within it nobody else says whether this endpoint is set aside, and how it fails."""
        return _ALONE if self._endpoints is None else self._endpoints.changing(id_, load)

    def has_other(self, target: Target) -> bool:
        """Whether another endpoint of its model would take a request now."""
        targets = self.table.targets.get((target.namespace, target.model), ())
        for each in targets:
            if each.id in self._loads:
                self._look(each.id)
        return isinstance(choose_target(targets, self._loads, self._clock(), 0, target.id), Target)

    def _is_away(self, conversation: int, chosen: Target) -> bool:
        """Whether this is not its home, which is silent: that reads somebody's long prompt, and has the cache then."""
        home = self._homes.find(conversation)
        load = None if home is None or home == chosen.id else self._loads.get(home)
        return load is not None and load.is_silent and load.aside is None

    def confirm(self, target: Target) -> None:
        """The endpoint answered with a byte. One that fails at requests shows by a whole answer that it works again."""
        load = self._look(target.id)
        if load.aside is not None and not load.is_failing:
            with self._changing(target.id, load):
                load.aside = None
            _log.info("endpoint %s of model '%s' answers again", target.id, target.model)

    def succeed(self, target: Target) -> None:
        """The endpoint gave a whole answer."""
        load = self._look(target.id)
        if load.failures:
            with self._changing(target.id, load):
                load.failures = 0
        self.confirm(target)

    def fail(self, target: Target, error: ApiError) -> None:
        """The endpoint gave an answer that ends in this, or none."""
        load = self._look(target.id)
        is_silent = error.code is ErrorCode.UPSTREAM_TIMEOUT
        if is_silent:
            if not load.is_silent:
                return
        elif error.code not in (ErrorCode.UPSTREAM_ERROR, ErrorCode.UPSTREAM_ENDED):
            return
        targets = self.table.targets.get((target.namespace, target.model), ())
        siblings = [self._look(each.id) if each.id in self._loads else None for each in targets]
        with self._changing(target.id, load):
            if is_silent:
                load.failures = max(load.failures, FAILURES_ASIDE - 1)  # one answer it owes to all weighs like many
            is_out = judge_failure(load, siblings, self._clock(), is_tried=load.is_tried_beside(target))
        if is_out and load.aside is not None:
            self.ledger.figures.count_ejection(target.namespace, target.model)
            words = "endpoint %s of model '%s' is set aside for %.0f s, since it failed %d times in a row, %s: %s"
            _log.warning(words, target.id, target.model, load.aside.seconds, load.failures, error.code, error.log_words)
            self._move_line(target.id)

    def look_for_silent(self) -> None:
        """Mark endpoints that owe bytes and give nobody any. One that nobody waits for is asked by one: it may have
        recovered."""
        for id_, load in self._loads.items():
            load.is_silent = id_ in self._awaiting and self._measure_silence(id_, load) >= SILENT_ENDPOINT_SECONDS

    def _measure_silence(self, id_: str, load: Load) -> float:
        """For how long requests have waited there, one after the other, while nobody got a byte."""
        now, awaiting = self._clock(), self._awaiting.get(id_, ())
        since = min((at for each in awaiting if (at := each.silent_since) is not None), default=now)
        heard_at = _latest((load.heard_at, *(each.last_byte_at for each in awaiting)))
        waited = now - (since if heard_at is None else max(since, heard_at))
        owed = load.owed
        if owed is None or now - owed.at >= HEARD_LATELY_SECONDS or (heard_at is not None and heard_at >= owed.at):
            return waited
        return waited + owed.seconds

    def _end_left(self, id_: str, now: float) -> None:
        """A byte for anybody says that a prompt which was left before it is read no more: engines look whose clients
        are gone between two batches of prompts, and tell of a batch when it is done."""
        load = self._loads.get(id_)
        if load is None or not load.left_at:
            return
        heard_at = _latest((load.heard_at, *(each.last_byte_at for each in self._awaiting.get(id_, ()))))
        since = now - LEFT_PROMPT_SECONDS if heard_at is None else max(heard_at, now - LEFT_PROMPT_SECONDS)
        load.left_at = [at for at in load.left_at if at >= since]
        if not load.left_at:
            self._left.discard(id_)

    def release(
        self,
        target: Target,
        *,
        refused: str | None = None,
        aside_seconds: int | None = None,
        is_busy: bool = False,
        is_read_on: bool = False,
    ) -> None:
        """The request is no longer there; `refused` says how the endpoint failed before a byte, `aside_seconds` for how
        long it asked to be spared, `is_busy` that it answered, and took nothing; `is_read_on`: it was left while the
        engine read its prompt, which can't be stopped at once."""
        load = self._loads[target.id]
        load.in_flight -= 1
        if self._endpoints is not None:
            self._endpoints.tell_in_flight(target.id, load.in_flight)
        if is_read_on:
            load.left_at = [*load.left_at, self._clock()][-target.slots :]
            self._left.add(target.id)
        if refused is not None:
            load.owed = None
            with self._changing(target.id, load):
                before = load.aside
                if not load.is_tried_beside(target):
                    load.failures = 0
                    load.aside = set_aside(before, self._clock(), aside_seconds or 0, is_busy=is_busy)
                self._end_trial(target, load)
            if not is_busy and (before is None or before.is_busy):
                self._on_news()
            if before is None:
                self.ledger.figures.count_ejection(target.namespace, target.model)
            if (aside := load.aside) is not None and aside.until > self._clock():  # else another request tries it
                words = "endpoint %s of model '%s' is set aside for %.0f s: %s"
                _log.warning(words, target.id, target.model, aside.until - self._clock(), refused)
        elif load.is_tried_by(target):
            with self._changing(target.id, load):
                self._end_trial(target, load)
        if refused is not None:
            self._move_line(target.id)
        if load.in_flight:
            return
        if target.id in self._departed:
            self._forget(target.id)
            self._on_news()
        elif self.waiting.has_any:  # it may make room for what they wait for
            self._on_news()

    def _end_trial(self, target: Target, load: Load) -> None:
        if load.is_tried_by(target):
            load.trial = 0
            if load.aside is not None:
                load.aside = replace(load.aside, is_probed=False)

    def _move_line(self, id_: str) -> None:
        """Who waits for an endpoint that takes nothing now finds another one."""
        for member in self.lines.take_waiting(id_):
            member.change_line()

    def follow(self, target: Target, request: Awaiting) -> bool:
        """Its silence counts until `unfollow`. Whether a slot is free for it."""
        awaiting = self._awaiting.setdefault(target.id, [])
        awaiting.append(request)
        load = self._loads[target.id]
        if not load.is_silent and (len(awaiting) > 1 or load.owed is not None):  # something was owed before it
            load.is_silent = self._measure_silence(target.id, load) >= SILENT_ENDPOINT_SECONDS
        return len(awaiting) <= target.slots or self.has_turn(target, request)

    def replace(self, target: Target, before: Awaiting, after: Awaiting) -> None:
        """The same request, in other hands."""
        awaiting = self._awaiting[target.id]
        awaiting[awaiting.index(before)] = after

    def has_turn(self, target: Target, request: Awaiting) -> bool:
        """Whether a slot is free for it, as far as this gateway's own requests go: fewer are before it than slots."""
        if not request.needs_slot:
            return True
        awaiting = self._awaiting.get(target.id, ())
        return request in islice((each for each in awaiting if each.needs_slot), target.slots)

    def unfollow(self, target: Target, request: Awaiting) -> None:
        load, awaiting = self._loads[target.id], self._awaiting[target.id]
        # One that owes it nothing changes nothing of what is owed to the others.
        is_owed = request.silent_since is not None or load.owed is not None
        silent_seconds = self._measure_silence(target.id, load) if is_owed else 0.0
        last = request.last_byte_at
        if last is not None and (load.heard_at is None or last > load.heard_at):
            load.heard_at = last
        load.owed = None
        awaiting.remove(request)
        if not awaiting:
            del self._awaiting[target.id]
        if is_owed and (owed_seconds := silent_seconds - self._measure_silence(target.id, load)) > 0:
            load.owed = Owed(self._clock(), owed_seconds)

    def render_allowances(self, render: RenderAllowances, key: str) -> bytes:
        """Header lines of what a key may still ask for; none where nothing limits it."""
        requests, tokens = self.accounts.allowances(key)
        return render(requests, tokens, self._wall()) if requests is not None or tokens is not None else b""

    def observe_figures(self, connections: int, log_lines_dropped: int) -> Present:
        """What is, for who asks for figures."""
        if self._endpoints is not None:
            return self._observe_all(self._endpoints, connections, log_lines_dropped)
        in_flight, in_line = dict.fromkeys(self.table.models, 0), 0
        for targets in self.table.targets.values():
            for target in targets:
                if (load := self._loads.get(target.id)) is not None:
                    name = (target.namespace, target.model)  # perhaps of a Model that is declared no more
                    waiting = self.lines.count_waiting(target.id)
                    in_flight[name] = in_flight.get(name, 0) + load.in_flight - waiting
                    in_line += waiting
        return Present(connections, in_flight, self.waiting.count(), in_line, self.is_ready, log_lines_dropped)

    def _observe_all(self, shared: "SharedEndpoints", connections: int, log_lines_dropped: int) -> Present:
        """What is at all workers."""
        in_flight, in_line = dict.fromkeys(self.table.models, 0), 0
        for name, targets in self.table.targets.items():
            for target in targets:
                there, waiting = shared.count_all(target.id)
                in_flight[name] = in_flight.get(name, 0) + there - waiting
                in_line += waiting
        self.tell_process(connections, log_lines_dropped)
        connections, held, dropped = shared.count_processes()
        return Present(connections, in_flight, held, in_line, self.is_ready, dropped)

    def tell_process(self, connections: int, log_lines_dropped: int) -> None:
        """How this worker is, for the others."""
        if self._endpoints is not None:
            self._endpoints.tell_process(connections, self.waiting.count(), log_lines_dropped)

    def reserve_body(self, count: int) -> bool:
        """Room for that many bytes of a request's body, until they are given back."""
        if self._body_bytes + count > MAX_BODIES_BYTES:
            return False
        self._body_bytes += count
        return True

    def free_body(self, count: int) -> None:
        self._body_bytes -= count

    def observe_demand(self) -> tuple[EndpointDemand, ...]:
        """Every endpoint with requests in flight, heard of late, set aside, or without a way to it, by instance."""
        now = self._clock()
        found = {
            instance_id: EndpointDemand(instance_id=instance_id, in_flight=0, unreachable=True, path_failure=words)
            for instance_id, words in self._path_failures.items()
        }
        for id_ in sorted(self._loads):
            load = self._look(id_)
            awaiting = self._awaiting.get(id_, ())
            heard_at = _latest((load.heard_at, *(each.last_byte_at for each in awaiting)))
            is_heard = heard_at is not None and now - heard_at < HEARD_LATELY_SECONDS
            if not load.in_flight and load.aside is None and not is_heard:
                continue
            silences = [now - since for each in awaiting if (since := each.silent_since) is not None]
            if silences:
                silences.append(self._measure_silence(id_, load))
            instance_id = self._instances[id_]
            known = found.get(instance_id, EndpointDemand(instance_id=instance_id, in_flight=0))
            ages = [known.last_byte_seconds] if heard_at is None else [known.last_byte_seconds, now - heard_at]
            found[instance_id] = known.model_copy(
                update={
                    "in_flight": known.in_flight + load.in_flight,
                    "unreachable": known.unreachable or (load.is_unreachable and id_ not in self._departed),
                    "last_byte_seconds": min((each for each in ages if each is not None), default=None),
                    "oldest_silent_seconds": _latest((known.oldest_silent_seconds, *silences)),
                }
            )
        return tuple(found.values())

    def observe_applied(self) -> Order | None:
        """The table by which requests are routed; None: there is none yet."""
        return self.table.order if self.has_table else None

    def observe_models(self) -> tuple[ModelDemand, ...]:
        """Models that were asked for while they had no endpoint."""
        return self.waiting.observe_demand()

    def observe_nodes(self) -> tuple[str, ...]:
        """Names of the nodes that the table routes to, sorted."""
        nodes = {target.node for targets in self.table.targets.values() for target in targets}
        return tuple(sorted(nodes - {""}))

    def set_date(self, now: float) -> None:
        """`now` is wall time, in seconds since the epoch."""
        self.date = formatdate(now, usegmt=True).encode()

    def _forget(self, id_: str) -> None:
        self._loads.pop(id_, None)
        if self._endpoints is not None:
            self._endpoints.forget(id_)
        self._left.discard(id_)
        self._departed.discard(id_)
        self._instances.pop(id_, None)


def _latest(times: Iterable[float | None]) -> float | None:
    return max((each for each in times if each is not None), default=None)
