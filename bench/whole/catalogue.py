"""What `make bench` runs, and which of the figures that are printed stand on the page, each with its bound.

A bound is what was asked of Covey, not what it reaches. A figure is the median of the lines that match.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Match = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Figure:
    """`match`: what a line has, `key`: where its value is, `scale`: of the value to the unit."""

    title: str
    match: Match
    key: str = "value"
    unit: str = ""
    bound: float | None = None
    is_least: bool = False
    """The bound is the least, where others are the most."""
    scale: float = 1.0
    plus: Match | None = None
    """The median of these lines is added to it."""
    of: Match | None = None
    """The figure is a ratio to the median of these lines. Both of the same key."""


@dataclass(frozen=True, slots=True)
class Bench:
    """`seconds`: the most it may take. `judges`: it ends with 1 where a bound isn't held, which is no failure."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    seconds: float
    script: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    judges: bool = False

    @property
    def command(self) -> str:
        words = [*(f"{name}={value}" for name, value in self.environment.items()), "python"]
        return " ".join([*words, f"bench/{self.script or self.name + '.py'}", *self.arguments])


def _plan(nodes: int, placements: int) -> tuple[Figure, ...]:
    size: Match = {"nodes": nodes, "placements": placements}
    named = f"{placements} Placements, {nodes} Nodes: "
    bounds = {"cold": 300.0, "quiet": 50.0, "report": 20.0} if nodes == 1000 else {}
    bounds |= {"cold": 2000.0} if nodes == 5000 else {}
    words = {"cold": "first plan", "quiet": "nothing changed", "report": "one node says something new"}
    plans = tuple(
        Figure(named + text, {"bench": f"reconcile.{name}", **size}, "bestCpuMs", "ms of CPU", bounds.get(name))
        for name, text in words.items()
    )
    memory = {"bench": "reconcile.memory", **size}
    return (*plans, Figure(named + "memory, peak", memory, "peakMB", "MB", 200.0 if nodes >= 1000 else None))


_REQUEST, _CHUNK = "cpu_per_request_us", "cpu_per_streamed_chunk_us"
_STREAM, _RATE = "cpu_per_stream_of_one_token_us", "requests_per_second"
PEERS = ("nginx", "vllm-router", "litellm", "covey")


def _peer(figure: str, peer: str) -> Match:
    return {"bench": "peers", "figure": figure, "peer": peer}


def _beside(figure: str, words: str, unit: str) -> tuple[Figure, ...]:
    return tuple(Figure(f"{words}: {peer}", _peer(figure, peer), unit=unit) for peer in PEERS)


def _ratio(words: str, figure: str, peer: str, bound: float, *, is_least: bool = False) -> Figure:
    here = _peer(figure, "covey")
    return Figure(
        f"{words} beside {peer}'s", here, unit="times", bound=bound, of=_peer(figure, peer), is_least=is_least
    )


def _added(name: str, words: str, median: float, p99: float | None = None) -> tuple[Figure, Figure]:
    """What the gateway adds to the way straight to the engine."""
    return (
        Figure(
            f"added {words}, median", {"bench": "gateway", "figure": f"{name}_added_p50_ms"}, unit="ms", bound=median
        ),
        Figure(f"added {words}, p99", {"bench": "gateway", "figure": f"{name}_added_p99_ms"}, unit="ms", bound=p99),
    )


def _survival(figure: str, unit: str, bound: float) -> Figure:
    return Figure(figure, {"figure": figure, "bound": bound}, unit=unit, bound=bound)


def _engine(figure: str, unit: str, bound: float) -> Figure:
    return Figure(figure, {"bench": "engines", "engine": "LlamaServer", "figure": figure}, unit=unit, bound=bound)


def _front(words: str, figure: str, way: str, unit: str) -> Figure:
    return Figure(words, {"bench": "front", "figure": figure, "way": way}, unit=unit)


def _front_ratio(shape: str) -> Figure:
    here: Match = {"bench": "front", "figure": f"gateway_cpu_per_{shape}_us"}
    keeper = {"bench": "front", "figure": f"keeper_cpu_per_{shape}_us"}
    words = f"CPU of a {shape.replace('_', ' ')}, gateway and keeper, beside the plain way's"
    return Figure(words, {**here, "way": "front"}, unit="times", bound=2.5, plus=keeper, of={**here, "way": "plain"})


BENCHES = (
    Bench(
        "seeds",
        "300 seeds of the simulator",
        (Figure("300 seeds, all cores", {"bench": "seeds", "seeds": 300}, "seconds", "s", 60.0),),
        300,
    ),
    Bench(
        "planner",
        "Choices of the planner as fleets grow",
        (
            Figure(
                "1000 Placements, 5000 Nodes", {"figure": "planner.choose", "nodes": 5000}, "minCpuSeconds", "s of CPU"
            ),
            Figure(
                "growth by nodes, of n log n", {"figure": "planner.growth", "by": "nodes"}, "timesNLogN", "times", 1.3
            ),
            Figure(
                "growth by Placements, of n log n",
                {"figure": "planner.growth", "by": "placements"},
                "timesNLogN",
                "times",
                1.3,
            ),
        ),
        240,
        judges=True,
    ),
    Bench("reconcile", "Whole plans", (*_plan(1000, 300), *_plan(5000, 1000)), 360, judges=True),
    Bench(
        "cache",
        "A cache of 10,000 blobs",
        (
            Figure("opened", {"measure": "start"}, "seconds", "s", 2.0),
            Figure(
                "verification, beside `sha256sum` by CPU",
                {"measure": "verify"},
                "of_sha256sum",
                "times",
                0.8,
                is_least=True,
            ),
        ),
        120,
    ),
    Bench(
        "survival",
        "At rest, and after a death",
        (
            _survival("CPU of all parts at rest", "% of a core", 3.0),
            _survival("wakeups of all parts at rest", "a second", 12.0),
            _survival("PSS of all parts at rest", "MB", 350.0),
            _survival("engine kill to unrouted", "s", 1.0),
            _survival("agent restart to adopted", "s", 3.0),
            _survival("controller restart to converged", "s", 5.0),
            _survival("gateway kill to answered", "s", 1.0),
        ),
        360,
    ),
    Bench(
        "rest",
        "A controller on a folder of YAML at rest: 300 Placements, 100 Nodes",
        (
            Figure("CPU", {"bench": "rest.steady"}, "cpu_percent", "% of a core"),
            Figure("CPU for each report", {"bench": "rest.steady"}, "cpu_ms_per_report", "ms"),
            Figure("memory", {"bench": "rest.steady"}, "rss_mib", "MiB"),
        ),
        300,
        arguments=("300", "100"),
    ),
    Bench(
        "apply",
        "From a wish to a stored Instance, on a folder of YAML",
        (
            Figure("`covey apply`, median", {"bench": "apply to Instance stored"}, "p50_ms", "ms"),
            Figure("a saved file, median", {"bench": "save to Instance stored"}, "p50_ms", "ms"),
        ),
        180,
    ),
    Bench(
        "engines",
        "An engine under the agent (LlamaServer)",
        (
            _engine("start added", "ms", 300.0),
            _engine("agent CPU", "% of a core", 1.0),
            _engine("agent memory", "MB of PSS", 80.0),
            _engine("keeper CPU", "% of a core", 0.1),
            _engine("keeper memory", "MB of PSS", 15.0),
        ),
        240,
        arguments=("LlamaServer",),
    ),
    Bench(
        "prefill",
        "A prompt of 4,000 tokens whose client leaves (LlamaServer)",
        (
            Figure("prompt read to its end", {"bench": "prefill", "figure": "prompt read to its end"}, unit="s"),
            Figure(
                "slot busy after its client left",
                {"bench": "prefill", "figure": "slot busy after its client left"},
                unit="s",
            ),
        ),
        240,
        arguments=("LlamaServer",),
    ),
    Bench(
        "gateway",
        "The gateway before one stub engine",
        (
            Figure("added at 50 requests/s, median", {"bench": "gateway", "figure": "stub_added_p50_ms"}, unit="ms"),
            Figure("added at 50 requests/s, p99", {"bench": "gateway", "figure": "stub_added_p99_ms"}, unit="ms"),
            *_added("busy", "at 500 requests/s", 0.5, 3.0),
            *_added("first_chunk", "to a stream's first chunk", 1.0, 5.0),
            *_added("long_prompt", "to a prompt of 200 kB", 3.0),
            Figure("CPU of a request", {"bench": "gateway", "figure": _REQUEST}, unit="µs"),
            Figure("CPU of a streamed chunk", {"bench": "gateway", "figure": _CHUNK}, unit="µs"),
            Figure("memory", {"bench": "gateway", "figure": "pss_mib"}, unit="MiB of PSS"),
        ),
        240,
    ),
    Bench(
        "peers",
        "Beside other relays: one worker each, the same 16 stub engines, in turns",
        (
            _ratio("CPU of a request", _REQUEST, "vllm-router", 0.9),
            _ratio("CPU of a request", _REQUEST, "nginx", 2.2),
            _ratio("requests a second", _RATE, "vllm-router", 1.0, is_least=True),
            _ratio("CPU of a streamed chunk", _CHUNK, "vllm-router", 1.0),
            *_beside(_REQUEST, "CPU of a request", "µs"),
            *_beside(_STREAM, "CPU of a stream of one token", "µs"),
            *_beside(_CHUNK, "CPU of a streamed chunk", "µs"),
            *_beside(_RATE, "requests a second", ""),
        ),
        360,
    ),
    Bench(
        "streams",
        "2,000 slow streams of one gateway at a time, 10 chunks a second each",
        (
            Figure("failed", {"bench": "streams", "figure": "streams_failed"}, bound=0.0),
            Figure(
                "memory, peak",
                {"bench": "streams", "figure": "peak_resident_mib"},
                unit="MB",
                bound=300.0,
                scale=1.048576,
            ),
            Figure("CPU of the gateway", {"bench": "streams", "figure": "gateway_cpu_percent"}, unit="% of a core"),
            Figure("later than the stubs' pace", {"bench": "streams", "figure": "seconds_late"}, unit="s"),
        ),
        180,
    ),
    Bench(
        "workers",
        "Workers of one gateway, beside one",
        (
            Figure(
                "requests a second of two beside one",
                {"bench": "workers", "figure": _RATE, "workers": 2},
                unit="times",
                bound=1.6,
                is_least=True,
                of={"bench": "workers", "figure": _RATE, "workers": 1},
            ),
            Figure("CPU of a request: one", {"bench": "workers", "figure": _REQUEST, "workers": 1}, unit="µs"),
            Figure("CPU of a request: two", {"bench": "workers", "figure": _REQUEST, "workers": 2}, unit="µs"),
        ),
        180,
    ),
    Bench(
        "front",
        "By a keeper's TLS front, beside plain loopback",
        (
            *(_front_ratio(shape) for shape in ("request", "stream_of_51")),
            _front("gateway's CPU of a request, plain", "gateway_cpu_per_request_us", "plain", "µs"),
            _front("gateway's CPU of a request, by the front", "gateway_cpu_per_request_us", "front", "µs"),
            _front("keeper's CPU of a request", "keeper_cpu_per_request_us", "front", "µs"),
            _front("through one connection, plain", "mib_per_second", "plain", "MiB/s"),
            _front("through one connection, by the front", "mib_per_second", "front", "MiB/s"),
        ),
        180,
    ),
    Bench(
        "affinity",
        "Conversations kept where they are: four real engines, 16 conversations of 6 turns, prefixes of 200 words",
        (
            Figure(
                "time to the first token, round robin's beside the gateway's",
                {"bench": "affinity", "figure": "ttft_round_robin_over_gateway"},
                unit="times",
                bound=2.0,
                is_least=True,
            ),
            Figure(
                "busiest endpoint's requests by the mean",
                {"bench": "affinity", "figure": "load_max_over_mean", "way": "gateway"},
                unit="times",
                bound=1.25,
            ),
            Figure(
                "prompt tokens read, gateway",
                {"bench": "affinity", "figure": "prompt_tokens_prefilled", "way": "gateway"},
            ),
            Figure(
                "prompt tokens read, round robin",
                {"bench": "affinity", "figure": "prompt_tokens_prefilled", "way": "round_robin"},
            ),
        ),
        420,
        environment={"COVEY_BENCH_WORDS": "200"},
    ),
    Bench(
        "peer_transfer",
        "A blob of 512 MiB from node to node over TLS, beside `curl` from nginx",
        (
            Figure("no digest, beside `curl`'s", {"measure": "plain"}, "of_curl", "%", 70.0, is_least=True, scale=100),
            Figure(
                "as an agent does, beside `curl`'s",
                {"measure": "whole"},
                "of_curl",
                "%",
                50.0,
                is_least=True,
                scale=100,
            ),
            Figure("`curl`", {"measure": "curl"}, "mb_per_second", "MB/s"),
            Figure("no digest", {"measure": "plain"}, "mb_per_second", "MB/s"),
            Figure("as an agent does", {"measure": "whole"}, "mb_per_second", "MB/s"),
            Figure("a model on three nodes leaves its origin", {"measure": "fleet"}, "times_from_origin", "times", 1.0),
        ),
        240,
        arguments=("512", "3"),
    ),
    Bench(
        "parts",
        "A file of 256 MiB by one connection and by several at once",
        tuple(
            Figure(
                f"{name}, a connection gets {words}", {"measure": "parts", "limit_mb_per_second": limit}, key, "MB/s"
            )
            for limit, words in ((20, "20 MB/s"), (0, "all there is"))
            for name, key in (("one", "one_mb_per_second"), ("several", "parts_mb_per_second"))
        ),
        120,
        arguments=("256", "1"),
    ),
    Bench(
        "kube",
        "Kubernetes: 500 Models, 500 Placements, 100 Nodes on a real API server",
        (
            Figure("apply → Instance assigned, median", {"bench": "kube.assigned"}, "p50_ms", "ms", 150.0),
            Figure("API writes for each Instance", {"bench": "kube.writes_per_instance"}, "writes", "", 15.0),
            Figure("full resync", {"bench": "kube.resync"}, "wall_s", "s", 10.0),
            Figure("CPU at rest", {"bench": "kube.steady"}, "cpu_percent", "% of a core", 3.0),
            Figure("memory at rest", {"bench": "kube.steady"}, "rss_mib", "MB", 200.0, scale=1.048576),
        ),
        540,
    ),
    Bench(
        "kube_idle",
        "Kubernetes: two controllers, 100 Placements, 20 Nodes, a minute and a half at rest",
        (
            Figure("CPU of both", {"bench": "kube.idle"}, "cpu_percent", "% of a core"),
            Figure("memory of both", {"bench": "kube.idle"}, "pss_mib", "MiB of PSS"),
        ),
        420,
        arguments=("90",),
    ),
)

# What was asked, and no benchmark measures.
UNMEASURED = (
    "at 500 requests/s: added p50 0.5 ms, p99 3 ms; the first chunk of a stream: 1 and 5 ms; a prompt of 200 KB: 3 ms",
    "a chunk of a translated format: 4 times the untranslated one",
    "a group of two: its first token, RPC through the tunnel beside plain RPC, a member's death to the client's error",
)
