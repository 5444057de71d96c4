"""Makes Instances of one Placement at one revision: all that is stamped on them, and their names."""

from collections.abc import Iterable

from covey_api.engines import Lane
from covey_api.instance import Instance, InstanceGoal, InstanceSpec, Member, MemberRole, StampedCompanion
from covey_api.kinds import ObjectKey
from covey_api.model import Model, ResolvedArtifact
from covey_api.placement import Failure, Placement
from covey_api.reasons import EventReason
from covey_api.trust import Proof, SignedBy
from covey_planner.types import Chosen, ShapeKind, Wish

from covey_controller.reconcile.draft import Draft
from covey_controller.reconcile.finalizers import held_metadata
from covey_controller.reconcile.fleet import pinned_versions
from covey_controller.reconcile.names import lowest_free_name
from covey_controller.reconcile.sights import Sight
from covey_controller.reconcile.wanted import failed_lanes, render_wish


class InstanceMaker:
    """Makes Instances of one Placement at one revision."""

    def __init__(self, draft: Draft, key: ObjectKey, placement: Placement, model: Model, revision: str) -> None:
        self.draft = draft
        self.key = key
        self.placement = placement
        self.model = model
        self.revision = revision

    def sight(self, name: str) -> Sight:
        return self.draft.sights[ObjectKey("Instance", self.key.namespace, name)]

    def draining(self) -> list[Instance]:
        """Instances of this Placement that are on their way out, and still hold their memory."""
        instances = [sight.instance for sight in self.draft.sights_of(self.key)]
        return [instance for instance in instances if instance.spec.goal is InstanceGoal.DRAIN]

    def create(self, chosen: Chosen) -> Instance | None:
        """None when this plan has used up its fresh ids."""
        instance_id = self.draft.next_id()
        if instance_id is None:
            return None
        name = lowest_free_name(self.draft, self.key.namespace, self.key.name)
        spec = self._stamp(chosen, instance_id)
        instance = Instance(metadata=held_metadata(name, self.key.namespace), spec=spec)
        others = ", ".join(f"'{each.node}'" for each in chosen.others)
        what = "donors" if chosen.kind is ShapeKind.RPC else "ranks on"
        message = (
            f"placed on node '{chosen.node}'{f' with {what} {others}' if others else ''}, lane "
            f"{chosen.lane.engine}/{chosen.lane.compute}, {chosen.options.slots} slots of "
            f"{chosen.options.context_tokens} tokens, revision {self.revision}"
        )
        self.draft.create(instance, EventReason.CREATED, message)
        return instance

    def _stamp(self, chosen: Chosen, instance_id: str) -> InstanceSpec:
        wish = self.placement.spec
        variant = next(each for each in self.model.spec.variants if each.name == chosen.variant)
        beside = dict(variant.companions)
        return InstanceSpec(
            instance_id=instance_id,
            placement=self.key.name,
            model=self.model.metadata.name,
            variant=chosen.variant,
            revision=self.revision,
            term=self.draft.world.term,
            engine=chosen.lane.engine,
            compute=chosen.lane.compute,
            engine_version=find_pin(self.draft, chosen.node, chosen.lane),
            artifact=demand_proof(self.model, variant.signature, chosen.artifact),
            companions=tuple(
                StampedCompanion(
                    role=each.role,
                    artifact=demand_proof(self.model, beside[each.role].signature, each.artifact),
                )
                for each in chosen.companions
            ),
            task=self.model.spec.tasks[0],
            options=chosen.options,
            runtime=variant.runtime,
            members=_members(chosen),
            startup_seconds=wish.timeouts.startup_seconds,
            drain_seconds=wish.rollout.drain_seconds,
        )


def _members(chosen: Chosen) -> tuple[Member, ...]:
    """Who answers first."""
    if not chosen.others:
        return (Member(node=chosen.node, costs=chosen.costs),)
    is_ring = chosen.kind is not ShapeKind.RPC
    first, other = (MemberRole.RANK,) * 2 if is_ring else (MemberRole.DRIVER, MemberRole.DONOR)
    return tuple(
        Member(name=str(index), node=node, role=other if index else first, costs=costs)
        for index, (node, costs) in enumerate(chosen.places)
    )


def find_pin(draft: Draft, node: str, lane: Lane) -> str:
    """Empty also where the lane's program is the operator's."""
    if not lane.versions:
        return ""
    sight = draft.nodes.get(node)
    return pinned_versions(sight.node if sight is not None else None, draft.fleet).get(lane.engine, "")


def demand_proof(model: Model, signature: str | None, artifact: ResolvedArtifact) -> ResolvedArtifact:
    """With the signature that the Model demands of it: its node looks at that before an engine gets the file."""
    trust = model.spec.trust
    # The schema demands a signature; of a Model that is older than that rule nothing is believed.
    is_demanded = trust.requires is Proof.SIGNATURE
    proof = SignedBy(signature=signature or "", signers=trust.signers) if is_demanded else None
    return artifact.model_copy(update={"proof": proof})


def next_wish(draft: Draft, key: ObjectKey, placement: Placement, model: Model, failures: Iterable[Failure]) -> Wish:
    """What the planner is asked for one more replica, after these failures."""
    return render_wish(
        placement,
        model,
        draft.fleet,
        failed_lanes(failures),
        running_instances(draft, key),
        draft.offered_engines(),
        draft.held_digests(),
    )


def running_instances(draft: Draft, key: ObjectKey) -> list[Instance]:
    """The Placement's Instances with goal Run whose node is not lost."""
    sights = [sight for sight in draft.sights_of(key) if sight.id not in draft.lost]
    return [sight.instance for sight in sights if sight.instance.spec.goal is InstanceGoal.RUN]
