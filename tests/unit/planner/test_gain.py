"""What a replica that serves would gain elsewhere: only what is worth a load is told."""

import pytest
from covey_api.engines import Compute, EngineName
from covey_api.instance import Costs, Member
from covey_planner.choice.gain import explain_gain
from covey_planner.types import Chosen
from kit import builders
from kit.planning import large_variant, variant, wish


def place(variant: str = "large", compute: Compute = Compute.CPU, window: int = 8192) -> Chosen:
    options = builders.instance().spec.options.changed(context_tokens=window)
    lane = builders.lane(compute=compute)
    return Chosen("b", variant, lane, builders.artifact(), options, (Costs(),))


def gain(found: Chosen, *, named: str = "large", compute: Compute = Compute.CPU, window: int = 8192) -> str:
    options = builders.instance().spec.options.changed(context_tokens=window)
    spec = builders.instance(
        variant=named,
        engine=EngineName.LLAMA_SERVER,
        compute=compute,
        options=options,
        members=(Member(node="a", costs=(Costs(),)),),
    ).spec
    return explain_gain(wish(variants=(large_variant("large"), variant("small"))), spec, found)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (place(), ""),
        (place(window=12_287), ""),
        (place(window=12_288), "a window of 12288 tokens in place of 8192"),
        (place(compute=Compute.CUDA, window=4096), "on Cuda in place of a processor"),
        (place("small", Compute.CUDA, 65_536), ""),
        (place("gone", Compute.CUDA, 65_536), ""),
    ],
)
def test_of_a_replica_on_a_processor(found: Chosen, words: str) -> None:
    assert gain(found) == words


def test_a_preferred_variant_is_worth_a_load_and_a_processor_is_none() -> None:
    assert gain(place(), named="small", compute=Compute.CUDA) == "variant 'large' on LlamaServer is preferred"
    assert gain(place(window=65_536), compute=Compute.CUDA) == ""
    assert gain(place(compute=Compute.ROCM), compute=Compute.CUDA) == ""
