"""Variants by how many requests a replica is expected to have at a time."""

from dataclasses import replace

import pytest
from covey_api.engines import ArtifactFormat, Compute, EngineName
from covey_planner.choice import choose
from covey_planner.choice.expected import FEW_REQUESTS, MANY_REQUESTS, explain_order, order_variants
from covey_planner.types import Pool, Wish
from kit import builders
from kit.builders import lane
from kit.planning import GIB, node, variant, wish

GGUF = variant("gguf")
SAFETENSORS = variant("safetensors", format=ArtifactFormat.SAFETENSORS, engines=(EngineName.VLLM,))
MLX = variant("mlx", format=ArtifactFormat.MLX, engines=(EngineName.MLX,))
BOTH = node(
    lanes=(
        lane(digest="0" * 64),
        lane(engine=EngineName.VLLM, compute=Compute.CPU),
    )
)


def asked(expected: int, *, engines: tuple[EngineName, ...] = ()) -> Wish:
    return wish(variants=(GGUF, SAFETENSORS, MLX), expected_requests=expected, engines=engines)


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        (FEW_REQUESTS, ["gguf", "mlx", "safetensors"]),
        (2, ["gguf", "safetensors", "mlx"]),
        (4, ["gguf", "safetensors", "mlx"]),
        (MANY_REQUESTS - 1, ["gguf", "safetensors", "mlx"]),
        (MANY_REQUESTS, ["safetensors", "gguf", "mlx"]),
        (64, ["safetensors", "gguf", "mlx"]),
    ],
)
def test_many_bring_vllm_to_the_front_and_one_sends_it_to_the_back(expected: int, names: list[str]) -> None:
    found = asked(expected)
    assert [each.name for each in order_variants(found)] == names
    assert bool(explain_order(found)) is (names != ["gguf", "safetensors", "mlx"])


@pytest.mark.parametrize(("expected", "engine"), [(4, EngineName.LLAMA_SERVER), (32, EngineName.VLLM)])
def test_a_node_with_both_engines_takes_the_one_for_so_many(expected: int, engine: EngineName) -> None:
    (chosen,) = choose(asked(expected), [BOTH], 1).chosen
    assert chosen.lane.engine is engine


@pytest.mark.parametrize("memory", [24, 2], ids=["a free card", "a card that is too small"])
def test_vllm_on_a_processor_comes_after_a_card_that_the_model_fits(memory: int) -> None:
    lanes = (*BOTH.lanes, lane(compute=Compute.CUDA, pool="Cuda0", digest="0" * 64))
    pools = (*BOTH.pools, Pool("Cuda0", memory * GIB, 0, 0))
    large = (replace(GGUF, geometry=builders.geometry(weights_bytes=4 * GIB)), SAFETENSORS)
    asks = wish(variants=large, expected_requests=32)
    nodes = [replace(BOTH, name="b"), replace(BOTH, lanes=lanes, pools=pools)]
    (chosen,) = choose(asks, nodes, 1).chosen
    assert chosen.lane.compute is (Compute.CUDA if memory == 24 else Compute.CPU)
    assert chosen.variant == ("gguf" if memory == 24 else "safetensors")
    assert "each on accelerators before any on a processor" in explain_order(asks)


def test_where_no_node_has_vllm_the_next_variant_is_taken() -> None:
    (chosen,) = choose(asked(32), [node()], 1).chosen
    assert chosen.variant == "gguf"


def test_engines_that_the_placement_names_are_taken_in_its_order() -> None:
    named = asked(32, engines=(EngineName.LLAMA_SERVER, EngineName.VLLM))
    (chosen,) = choose(named, [BOTH], 1).chosen
    assert chosen.lane.engine is EngineName.LLAMA_SERVER
    assert explain_order(named) == ""


def test_a_variant_keeps_the_order_of_its_engines() -> None:
    mixed = replace(SAFETENSORS, engines=(EngineName.MLX, EngineName.VLLM))
    found = replace(asked(32), variants=(GGUF, mixed))
    assert order_variants(found) == (GGUF, mixed)
