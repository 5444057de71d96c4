"""The options that are stamped on an Instance where nobody wishes otherwise, each with its reason."""

from covey_api.engines import KvCacheType
from covey_api.instance import EngineOptions
from covey_api.model import Geometry

from covey_planner.geometry.projector import IMAGE_TOKENS

# What the estimator takes for granted beside the stamped options; the adapter passes these to every llama-server.
#   no mmap: an engine that lays matrices out anew for the CPU would keep the mapped file and its copy (newer builds
#     say `--load-mode none`, and still know this name; older ones know this one alone)
#   flash attention: without it the buffers grow with window by micro batch by heads
#   no unified cache: every slot has its own window, so one conversation can't end another's
#   no fitting: the engine must not shrink what was stamped
ASSUMED_ARGUMENTS: tuple[str, ...] = ("--no-mmap", "--flash-attn", "on", "--no-kv-unified", "--fit", "off")

# The engine's own default, and the point from which larger batches gain little; its buffers grow with the micro batch.
_BATCH_TOKENS = 2048
_MICRO_BATCH_TOKENS = 512
# Decoding is bound by memory bandwidth: more threads than this only fight over it.
_MAX_THREADS = 16
# Sliding layers forget: when a long answer is dropped or shortened, the next turn is read from its start again, unless
# a copy of their state from before the answer is there. The engine makes two per prompt, at its end and a micro batch
# before; only the second is early enough (measured: with one, nothing was saved; with two, all but the micro batch).
_SLIDING_CHECKPOINTS = 2


def stamp_options(
    geometry: Geometry,
    *,
    cpu_cores: int,
    context_tokens: int,
    slots: int,
    kv_cache_type: KvCacheType,
    has_projector: bool = False,
) -> EngineOptions:
    """All options that cost memory or context.

    The host prompt cache is off: a slot keeps its own last prompt anyway, and what the cache adds grows with use up to
    a limit that would have to be reserved whole. Matrices of latent attention have three dimensions, and llama.cpp
    (seen in 10434) aborts at the load when it lays those out for AMX: there they stay as they are, on every processor,
    since what the planner stamps must not depend on which one it is.
    """
    return EngineOptions(
        context_tokens=context_tokens,
        slots=slots,
        kv_cache_type=kv_cache_type,
        batch_tokens=_BATCH_TOKENS,
        micro_batch_tokens=_MICRO_BATCH_TOKENS,
        host_cache_mib=0,
        context_checkpoints=_SLIDING_CHECKPOINTS if geometry.sliding_layers else 0,
        threads=choose_threads(cpu_cores),
        repack=not geometry.latent_attention,
        image_tokens=IMAGE_TOKENS if has_projector else 0,
    )


def choose_threads(cpu_cores: int) -> int:
    """One thread per two logical cores, at least one: on two cores a second thread starves everything else."""
    return max(1, min(cpu_cores // 2, _MAX_THREADS))
