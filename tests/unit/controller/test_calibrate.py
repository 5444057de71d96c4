"""What engines took flows back into the next Instance, and into no other."""

from covey_api.engines import Compute, EngineName
from covey_api.instance import Instance
from covey_api.kinds import ObjectKey
from covey_api.model import Model, VariantCalibration
from covey_api.reasons import EventReason
from covey_controller.reconcile.wanted import view_variant
from covey_controller.reconcile.why import explain
from kit import builders
from kit.worlds import Worldlet

MODEL = ObjectKey("Model", "default", "smollm2")
PLACEMENT = ObjectKey("Placement", "default", "smollm2")


def begun(percent_used: int) -> Worldlet:
    """One replica that takes this much of what is computed for it."""
    story = Worldlet()
    story.put(builders.model(), builders.placement())
    story.add_agents("a")

    def used(instance: Instance) -> int:
        (costs,) = instance.spec.members[0].costs
        return costs.total_bytes * 100 // costs.calibration_percent * percent_used // 100

    story.agents["a"].used = used
    story.run(15)
    return story


def calibrations(story: Worldlet) -> tuple[VariantCalibration, ...]:
    model = story.objects[MODEL]
    assert isinstance(model, Model)
    return model.status.variants[0].calibrations


def made_anew(story: Worldlet) -> Instance:
    """The replica after its predecessor was deleted."""
    story.put(builders.placement(suspend=True))
    story.run(15)
    assert not story.instances()
    story.put(builders.placement())
    story.run(15)
    (instance,) = story.instances()
    return instance


def test_engine_that_takes_more_raises_the_next_estimate_and_leaves_itself_alone() -> None:
    story = begun(112)
    (first,) = story.instances()
    assert first.spec.members[0].costs[0].calibration_percent == 100
    (entry,) = calibrations(story)
    assert (entry.percent, entry.engine.value, entry.compute.value) == (112, "LlamaServer", "Cpu")
    second = made_anew(story)
    assert second.spec.members[0].costs[0].calibration_percent == 112
    assert second.spec.members[0].costs[0].weights_bytes > first.spec.members[0].costs[0].weights_bytes
    text = explain(story.observe(), story.now, PLACEMENT)[0]
    assert "takes of pool 'Host', at 112 % of what is computed, by what earlier loads took:" in text


def told(story: Worldlet) -> list[tuple[bool, str]]:
    return [(note.warning, note.message) for note in story.notes if note.reason == EventReason.CALIBRATED]


def test_change_of_a_factor_is_told_once_and_shown_of_the_model_and_of_the_next_replica() -> None:
    story = begun(112)
    words = "on lane LlamaServer/Cpu{} loads took 112 % of what is computed for host memory"
    story.run(60)
    ((warning, message),) = told(story)
    assert (warning, words.format(":") in message) == (False, True)
    assert words.format("") in explain(story.observe(), story.now, MODEL)[0]
    (line,) = (line for line in explain(story.observe(), story.now, PLACEMENT)[0].splitlines() if "yes: " in line)
    assert "in pool 'Host', at 112 % of what is computed" in line


def test_factor_at_its_bound_is_a_warning() -> None:
    story = begun(190)
    story.run(60)
    ((warning, message),) = told(story)
    assert warning
    assert "took 150 % or more (no more is counted: raise the Model's `spec.memory.workspace`" in message
    assert "150 % or more" in explain(story.observe(), story.now, MODEL)[0]


def test_engine_that_takes_less_lowers_it_after_five_loads() -> None:
    story = begun(90)
    assert calibrations(story) == ()
    for load in range(1, 5):
        assert made_anew(story).spec.members[0].costs[0].calibration_percent == 100
        assert calibrations(story)[0].loads == load
    assert made_anew(story).spec.members[0].costs[0].calibration_percent == 90
    assert calibrations(story)[0].percent == 90


def test_new_leader_knows_what_was_learned() -> None:
    story = begun(130)
    story.restart_leader()
    story.run(15)
    assert calibrations(story)[0].percent == 130
    assert made_anew(story).spec.members[0].costs[0].calibration_percent == 130


def test_quiet_fleet_writes_nothing_of_it() -> None:
    story = begun(112)
    before = story.writes
    story.run(60)
    assert story.writes == before


def test_node_that_tells_nothing_teaches_nothing() -> None:
    story = begun(0)
    made_anew(story)
    assert calibrations(story) == ()


def test_another_artifact_learns_nothing_from_engines_of_the_old_one() -> None:
    story = begun(0)
    model = story.objects[MODEL]
    assert isinstance(model, Model)
    variant = model.status.variants[0].model_copy(update={"artifact": builders.artifact(sha256="b" * 64)})
    story.put(model.model_copy(update={"status": model.status.model_copy(update={"variants": (variant,)})}))
    story.agents["a"].used = lambda instance: 2 * instance.spec.members[0].bytes_in("Host")
    story.run(5)
    assert calibrations(story) == ()


def test_what_was_learned_beside_an_older_formula_of_an_engine_is_not_used() -> None:
    vllm = VariantCalibration(engine=EngineName.VLLM, compute=Compute.CPU, percent=150)
    server = VariantCalibration(engine=EngineName.LLAMA_SERVER, compute=Compute.CPU, percent=120)
    model = builders.model()
    for formula, known in ((1, {}), (2, {(EngineName.VLLM, Compute.CPU): 150})):
        entries = (vllm.model_copy(update={"formula": formula}), server)
        status = model.status.variants[0].model_copy(update={"calibrations": entries})
        kept = model.model_copy(update={"status": model.status.model_copy(update={"variants": (status,)})})
        view = view_variant(kept, kept.spec.variants[0], tuple(EngineName))
        assert view.calibrations == known | {(EngineName.LLAMA_SERVER, Compute.CPU): 120}
