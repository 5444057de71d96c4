"""Documents as the API server takes them with strict validation, each refusal with its line, field and words."""

import json
from pathlib import Path

import pytest
from covey_api.model import Model
from covey_api.placement import Placement
from covey_api.registry import WRITABLE_KINDS
from covey_controller.ports import InvalidSet, SourceError
from covey_controller.stores.files.documents import MAX_ERRORS, ParsedDocument, parse_documents

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"

MODEL = """\
apiVersion: covey.dev/v1alpha1
kind: Model
metadata:
  name: m
spec:
  tasks: [Chat]
  variants:
  - name: a
    format: Gguf
    source: file:///models/a.gguf
    engines: [LlamaServer]
"""
PLACEMENT = """\
apiVersion: covey.dev/v1alpha1
kind: Placement
metadata: {name: m}
spec:
  modelRef: {name: m}
"""
TASKS = "'Chat', 'Embedding', 'Rerank', 'Vision'"


def parse(*texts: str) -> tuple[ParsedDocument, ...]:
    return parse_documents({f"{index}.yaml": text.encode() for index, text in enumerate(texts)})


def errors_of(*texts: str) -> tuple[SourceError, ...]:
    with pytest.raises(InvalidSet) as caught:
        parse(*texts)
    return caught.value.errors


def head(kind: str, metadata: str = "{name: m}") -> str:
    return f"apiVersion: covey.dev/v1alpha1\nkind: {kind}\nmetadata: {metadata}\n"


def test_every_example_is_valid() -> None:
    """Those with a number are sources, to be applied as they are; `what-if` is a scenario with what it names."""
    for folder in sorted(EXAMPLES.glob("[0-9]*")):
        assert parse_documents({path.name: path.read_bytes() for path in folder.glob("*.yaml")})


def test_a_document_becomes_an_object_with_defaults_and_keeps_what_was_written() -> None:
    (document,) = parse("# first\n" + PLACEMENT)
    placement = document.object
    assert isinstance(placement, Placement)
    assert (placement.spec.replicas, placement.spec.concurrency, placement.spec.rollout.drain_seconds) == (1, 4, 60)
    assert placement.metadata.namespace == "default"
    assert document.raw["spec"] == {"modelRef": {"name": "m"}}
    assert (str(document.key), document.key.namespace) == ("placement/m", "default")
    assert (document.file, document.line) == ("0.yaml", 2)


@pytest.mark.parametrize("kind", sorted(WRITABLE_KINDS))
def test_defaults_of_the_crd_are_those_of_the_type(kind: str) -> None:
    specs = {
        "Model": MODEL.split("metadata:\n  name: m\n")[1],
        "Placement": "spec: {modelRef: {name: m}}",
        "AccessKey": f"spec: {{hash: 'sha256:{'0' * 64}'}}",
    }
    name = "default" if kind == "Fleet" else "m"
    (document,) = parse(head(kind, f"{{name: {name}}}") + specs.get(kind, ""))
    assert (
        document.object.model_dump()["spec"] == type(document.object).model_validate(document.raw).model_dump()["spec"]
    )


def test_several_documents_lists_and_json_are_all_read() -> None:
    listed = "apiVersion: v1\nkind: List\nitems:\n- " + PLACEMENT.replace("\n", "\n  ")
    json = '{"apiVersion":"covey.dev/v1alpha1","kind":"Node","metadata":{"name":"n"}}'
    keys = [str(document.key) for document in parse(MODEL + "---\n" + head("Fleet", "{name: default}"), listed, json)]
    assert keys == ["model/m", "fleet/default", "placement/m", "node/n"]


def test_empty_and_comment_only_files_hold_no_objects() -> None:
    assert parse("", "# nothing\n", "---\n---\n") == ()


def test_json_has_letters_beyond_16_bits_as_two_escapes() -> None:
    document = {
        "apiVersion": "covey.dev/v1alpha1",
        "kind": "Placement",
        "metadata": {"name": "m", "annotations": {"a": "\U0001f600é\\u\\ud83d"}},
        "spec": {"modelRef": {"name": "m"}},
    }
    text = json.dumps(document)
    assert "\\ud83d\\ude00" in text
    (parsed,) = parse(text)
    assert parsed.object.metadata.annotations == {"a": "\U0001f600é\\u\\ud83d"}
    (parsed,) = parse(text.replace("\\ud83d\\ude00", "\\ud83d"))
    assert parsed.object.metadata.annotations == {"a": "\ufffdé\\u\\ud83d"}


def test_namespace_of_a_cluster_scoped_object_is_dropped_as_kubernetes_drops_it() -> None:
    (document,) = parse(head("Node", "{name: a, namespace: default}"))
    assert (document.key.namespace, document.object.metadata.namespace) == ("", "")


def test_rules_are_told_beside_a_broken_pattern_and_not_beside_a_broken_type() -> None:
    rule = "`spec.context.minTokens` must be at most `spec.context.tokens`"
    context = "  context: {tokens: 300, minTokens: 400}\n"
    broken = errors_of(PLACEMENT.replace("modelRef: {name: m}", "modelRef: {name: M}") + context)
    assert [error.field for error in broken] == ["spec.modelRef.name", "spec.context"]
    assert broken[1].message == rule
    assert rule not in [error.message for error in errors_of(PLACEMENT + context + "  suspend: 'yes'\n")]


def test_length_of_a_key_is_counted_in_letters() -> None:
    text = PLACEMENT + "  nodes: {selector: {" + "名" * 128 + ": a}}\n"
    assert len(parse(text)) == 1
    (error,) = errors_of(text.replace("名", "名名", 1))
    assert error.message == "keys of `spec.nodes.selector` must be at most 128 characters"


def test_a_key_that_yaml_cannot_read_is_refused_with_its_bound() -> None:
    (error,) = errors_of("a: {" + "b" * 2000 + ": 1}\n")
    assert error.message.endswith("; a key must be at most 1024 characters long")


def test_all_annotations_together_are_bounded() -> None:
    (error,) = errors_of(PLACEMENT.replace("{name: m}", "{name: m, annotations: {a: " + "é" * 131_072 + "}}", 1))
    assert error.message == "`metadata.annotations` must be at most 262144 bytes together; got 262145 bytes"


def test_what_kubectl_prints_can_be_a_file() -> None:
    metadata = (
        "{name: m, namespace: a, uid: u, resourceVersion: '5', generation: 2, creationTimestamp: 2027-01-31T00:00:00Z, "
        "labels: {example.com/zone: a}, annotations: {note: x}, managedFields: [{manager: kubectl}], finalizers: [x]}"
    )
    (document,) = parse(PLACEMENT.replace("{name: m}", metadata, 1) + "status: {observedGeneration: 7}\n")
    stored = document.object.metadata
    assert (stored.namespace, stored.labels, stored.annotations) == ("a", {"example.com/zone": "a"}, {"note": "x"})
    assert (stored.uid, stored.resource_version, stored.generation, stored.finalizers) == ("", "", 0, ())
    assert isinstance(document.object, Placement)
    assert document.object.status.observed_generation == -1


def test_null_is_not_given() -> None:
    (document,) = parse(PLACEMENT + "  replicas: null\n  context: ~\n  nodes: {include: null}\n")
    assert isinstance(document.object, Placement)
    assert document.object.model_dump() == parse(PLACEMENT)[0].object.model_dump()


def test_aliases_do_not_share_what_is_filled_in() -> None:
    text = MODEL.replace("tasks: [Chat]", "tasks: &t [Chat]") + "---\n" + PLACEMENT
    model = parse(text)[0].object
    assert isinstance(model, Model)
    assert model.spec.memory.workspace == "0"


UNPROVEN = (
    "where `spec.trust.requires` is 'Digest' each of `spec.variants`, its `projector` and its `draft` must have "
    "`sha256`, or a `store://` source"
)


UNSIGNED = (
    "where `spec.trust.requires` is 'Signature' it must name `signers`, and each of `spec.variants`, its `projector` "
    "and its `draft` must have a `signature`"
)


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        (
            MODEL.replace("LlamaServer", "LlamaServr"),
            11,
            "spec.variants[0].engines[0]",
            "`spec.variants[0].engines[0]` must be one of 'LlamaServer', 'LlamaCpp', 'Mlx', 'Vllm'; got 'LlamaServr' "
            "(did you mean 'LlamaServer'?)",
        ),
        (
            MODEL.replace("[LlamaServer]", "[LlamaServer, LlamaCpp]\n    draft: {source: file:///d.gguf}"),
            8,
            "spec.variants[0]",
            "`engines` of a variant with `projector` or `draft` must be ['LlamaServer']: no other engine loads them. "
            "Others can have a variant of their own, without",
        ),
        (
            MODEL.replace("[LlamaServer]", "[LlamaServer]\n    projector: {source: file:///p.gguf}"),
            5,
            "spec",
            "`spec.tasks` must have 'Vision' where one of `spec.variants` names a `projector`: without it no image "
            "reaches the engine",
        ),
        (
            MODEL.replace("[Chat]", "[Chat, Vision]"),
            5,
            "spec",
            "with the task 'Vision' each of `spec.variants` must name a `projector`",
        ),
        (
            MODEL.replace("[Chat]", "[Embedding]").replace(
                "[LlamaServer]", "[LlamaServer]\n    draft: {source: file:///d.gguf}"
            ),
            5,
            "spec",
            "`spec.tasks` must begin with 'Chat' where it has 'Vision', or one of `spec.variants` names a `draft`",
        ),
        (
            MODEL + "  trust: {requires: Digest}\n",
            5,
            "spec",
            UNPROVEN,
        ),
        (
            MODEL.replace("[Chat]", "[Chat, Vision]").replace(
                "[LlamaServer]", f"[LlamaServer]\n    sha256: {'a' * 64}\n    projector: {{source: file:///p.gguf}}"
            )
            + "  trust: {requires: Digest}\n",
            5,
            "spec",
            UNPROVEN,
        ),
        (
            MODEL.replace("[LlamaServer]", "[LlamaServer]\n    draft: {source: file:///d.gguf}").replace(
                "source: file:///models/a.gguf", f"source: 'store://{'a' * 64}'"
            )
            + "  trust: {requires: Digest}\n",
            5,
            "spec",
            UNPROVEN,
        ),
        (
            MODEL + "  trust: {requires: Signature}\n",
            5,
            "spec",
            UNSIGNED,
        ),
        (
            MODEL + "  trust: {requires: Signature, signers: [{publicKey: '-----BEGIN PUBLIC KEY-----\\n'}]}\n",
            5,
            "spec",
            UNSIGNED,
        ),
        (
            MODEL.replace("[LlamaServer]", "[LlamaServer]\n    signature: pypi://a==1#b"),
            12,
            "spec.variants[0].signature",
            "`spec.variants[0].signature` must be 'hf://OWNER/REPO@REVISION#FILE', 'https://HOST/PATH' or "
            "'file:///ABSOLUTE/PATH'; got 'pypi://a==1#b'",
        ),
        (
            MODEL + "  trust: {signers: [{}]}\n",
            12,
            "spec.trust.signers[0]",
            "a signer must have `publicKey`, `authorities` or `sigstore`",
        ),
        (
            MODEL + "  alias: [x]\n",
            12,
            "spec.alias",
            "`spec.alias` must not be given: `spec` has no such field (did you mean 'aliases'?)",
        ),
        (
            PLACEMENT + "  zzz: 1\n",
            6,
            "spec.zzz",
            "`spec.zzz` must not be given: `spec` has no such field; it has 'modelRef', 'replicas', 'scaling', "
            "'engines', 'shape', 'nodes', 'context', 'concurrency', 'kvCache', 'priority', …",
        ),
        (MODEL.replace("  tasks: [Chat]\n", ""), 5, "spec.tasks", f"`spec.tasks` must be given: a list of {TASKS}"),
        (head("Model"), 1, "spec", "`spec` must be given: a mapping with 'tasks', 'variants'"),
        (MODEL.replace("[Chat]", "[]"), 6, "spec.tasks", "`spec.tasks` must have at least 1 entry; got 0 entries"),
        (MODEL.replace("[Chat]", "Chat"), 6, "spec.tasks", "`spec.tasks` must be a list; got 'Chat'"),
        (
            MODEL.replace("[Chat]", "[null]"),
            6,
            "spec.tasks[0]",
            "`spec.tasks[0]` must be a string; got null",
        ),
        (
            MODEL.replace("file:///models/a.gguf", "store://org/model"),
            10,
            "spec.variants[0].source",
            "`spec.variants[0].source` must be 'hf://OWNER/REPO@REVISION#FILE', 'oci://REGISTRY/REPOSITORY:TAG#FILE', "
            "'pypi://NAME==VERSION#PATH-IN-WHEEL', 'https://HOST/PATH', 'file:///ABSOLUTE/PATH' or "
            "'store://SHA256#NAME'; got 'store://org/model'",
        ),
        (
            MODEL.replace("file:///models/a.gguf", "https://example.com/a.gguf"),
            8,
            "spec.variants[0]",
            "`sha256` must be given with an 'https://' source: nothing else says what the file must be",
        ),
        (
            MODEL + "    sha256: 1\n",
            12,
            "spec.variants[0].sha256",
            "`spec.variants[0].sha256` must be a string; got 1 (put it in quotes to make it a string)",
        ),
        (
            PLACEMENT + "  replicas: '3'\n",
            6,
            "spec.replicas",
            "`spec.replicas` must be an integer; got '3' (write it without quotes)",
        ),
        (PLACEMENT + "  replicas: 1.5\n", 6, "spec.replicas", "`spec.replicas` must be an integer; got 1.5"),
        (PLACEMENT + "  replicas: 65\n", 6, "spec.replicas", "`spec.replicas` must be at most 64; got 65"),
        (PLACEMENT + "  replicas: -1\n", 6, "spec.replicas", "`spec.replicas` must be at least 0; got -1"),
        (
            PLACEMENT + "  suspend: 'true'\n",
            6,
            "spec.suspend",
            "`spec.suspend` must be true or false; got 'true' (write it without quotes)",
        ),
        (
            PLACEMENT + "  nodes:\n    selector: {zone: a b}\n",
            7,
            "spec.nodes.selector.zone",
            "`spec.nodes.selector.zone` must be letters, digits, '-', '_' and '.', with a letter or digit at both "
            "ends; got 'a b'",
        ),
        (
            PLACEMENT + "  shape: {topologyLock: [a, b]}\n",
            6,
            "spec.shape",
            "`spec.shape.topologyLock` must come with `spec.shape.type` 'Rpc', 'Pipeline' or 'Tensor'",
        ),
        (
            PLACEMENT + "  shape: {type: Rpc, topologyLock: [a, a]}\n",
            6,
            "spec.shape",
            "`spec.shape.topologyLock` must name two nodes at least, each once",
        ),
        (
            PLACEMENT + "  shape: {type: Tensor, topologyLock: [a]}\n",
            6,
            "spec.shape",
            "`spec.shape.topologyLock` must name two nodes at least, each once",
        ),
        (
            PLACEMENT + f"  nodes:\n    selector: {{{', '.join(f'k{n}: a' for n in range(17))}}}\n",
            7,
            "spec.nodes.selector",
            "`spec.nodes.selector` must have at most 16 entries; got 17 entries",
        ),
        (
            MODEL + f"  aliases: [{'a' * 129}]\n",
            12,
            "spec.aliases[0]",
            "`spec.aliases[0]` must be at most 128 characters long; got 129 characters",
        ),
        (
            head("Node") + "spec:\n  engines:\n  - engine: LlamaServer\n    path: bin/llama-server\n",
            7,
            "spec.engines[0].path",
            "`spec.engines[0].path` must be an absolute path without control characters; got 'bin/llama-server'",
        ),
        (
            head("Node") + "spec: {reserve: {memory: lots}}\n",
            4,
            "spec.reserve.memory",
            "`spec.reserve.memory` must be digits with an optional suffix such as '512Mi' or '16Gi'; got 'lots'",
        ),
        (head("Fleet"), 3, "metadata.name", "`metadata.name` must be one of 'default'; got 'm'"),
        (
            PLACEMENT.replace("{name: m}", '{name: "m\\n"}', 1),
            3,
            "metadata.name",
            "`metadata.name` must be lowercase letters, digits and '-', with a letter or digit at both "
            "ends; got 'm\\n'",
        ),
        (
            PLACEMENT.replace("{name: m}", f"{{name: {'m' * 54}}}", 1),
            3,
            "metadata.name",
            "`metadata.name` must be at most 53 characters long; got 54 characters",
        ),
        (
            PLACEMENT.replace("{name: m}", "{name: n}", 1),  # in YAML 1.1, as Kubernetes reads it, `n` is false
            3,
            "metadata.name",
            "`metadata.name` must be a string; got false (put it in quotes to make it a string)",
        ),
        (
            PLACEMENT.replace("{name: m}", "{generateName: m-}", 1),
            3,
            "metadata.name",
            "`metadata.name` must be given",
        ),
        (PLACEMENT.replace("metadata: {name: m}\n", ""), 1, "metadata.name", "`metadata.name` must be given"),
        (PLACEMENT.replace("{name: m}", "x", 1), 3, "metadata", "`metadata` must be a mapping; got 'x'"),
        (
            PLACEMENT.replace("{name: m}", "{name: m, label: {}}", 1),
            3,
            "metadata.label",
            "`metadata.label` must not be given: `metadata` has no such field (did you mean 'labels'?)",
        ),
        (
            PLACEMENT.replace("{name: m}", "{name: m, labels: {a: yes}}", 1),
            3,
            "metadata.labels",
            "`metadata.labels.a` must be a string; got true (put it in quotes to make it a string)",
        ),
        (
            PLACEMENT.replace("{name: m}", "{name: m, annotations: {'a b': x}}", 1),
            3,
            "metadata.annotations",
            "keys of `metadata.annotations` must be a name such as 'note' or 'example.com/note'; got 'a b'",
        ),
        (
            MODEL.replace("kind: Model", "kind: model"),
            2,
            "kind",
            "`kind` must be one of 'Model', 'Placement', 'Node', 'Fleet', 'AccessKey'; got 'model' "
            "(did you mean 'Model'?)",
        ),
        (
            MODEL.replace("v1alpha1", "v1alpha2"),
            1,
            "apiVersion",
            "`apiVersion` must be 'covey.dev/v1alpha1'; got 'covey.dev/v1alpha2' (did you mean 'covey.dev/v1alpha1'?)",
        ),
        ("kind: Model\n", 1, "apiVersion", "`apiVersion` must be given: 'covey.dev/v1alpha1'"),
        (
            "apiVersion: covey.dev/v1alpha1\n",
            1,
            "kind",
            "`kind` must be given: 'Model', 'Placement', 'Node', 'Fleet', 'AccessKey'",
        ),
        (
            "apiVersion: covey.dev/v1alpha1\nkind: {a: b}\n",
            2,
            "kind",
            "`kind` must be one of 'Model', 'Placement', 'Node', 'Fleet', 'AccessKey'; got a mapping",
        ),
        (
            head("Instance"),
            2,
            "kind",
            "`kind` must not be 'Instance': the controller writes Instances. Write a Placement instead",
        ),
        (
            "- a\n",
            1,
            "",
            "a document must be a mapping with `apiVersion`, `kind` and `metadata`; got a list",
        ),
        (
            MODEL + "extra: 1\n",
            12,
            "extra",
            "`extra` must not be given: the document has no such field; it has 'apiVersion', 'kind', "
            "'metadata', 'spec', 'status'",
        ),
        (
            MODEL + MODEL.split("variants:\n")[1],
            5,
            "spec",
            "names in `spec.variants` must be unique",
        ),
        (
            PLACEMENT + "  scaling: {min: 2}\n",
            6,
            "spec.scaling",
            "`spec.scaling.min` must be at most `spec.scaling.max`",
        ),
        (
            PLACEMENT + "  context: {tokens: 512, minTokens: 1024}\n",
            6,
            "spec.context",
            "`spec.context.minTokens` must be at most `spec.context.tokens`",
        ),
        (
            PLACEMENT + f"  nodes:\n    selector:\n      {'k' * 129}: a\n",
            7,
            "spec.nodes.selector",
            "keys of `spec.nodes.selector` must be at most 128 characters",
        ),
        (
            head("Node") + "spec:\n  engines: [{engine: LlamaServer}, {engine: LlamaServer}]\n",
            4,
            "spec",
            "`spec.engines` must name each engine at most once",
        ),
        ("a: [", 1, "", "file must be valid YAML: did not find expected node content while parsing a flow node"),
        ("spec:\n  a: 1\n  a: 2\n", 3, "spec.a", "key 'a' must be given once in its mapping; got it on lines 2 and 3"),
    ],
)
def test_refusals_name_line_field_and_what_must_hold(text: str, line: int, field: str, message: str) -> None:
    (error,) = errors_of(text)
    assert (error.file, error.line, error.field, error.message) == ("0.yaml", line, field, message)


def test_a_source_that_is_its_digest_needs_no_other_where_digests_are_demanded() -> None:
    stored = f"'store://{'a' * 64}#x.gguf'"
    text = MODEL.replace("file:///models/a.gguf", stored).replace(
        "[LlamaServer]", f"[LlamaServer]\n    projector: {{source: {stored}}}\n    draft: {{source: {stored}}}"
    )
    assert len(parse(text.replace("[Chat]", "[Chat, Vision]") + "  trust: {requires: Digest}\n")) == 1


def test_secrets_are_refused_and_never_shown() -> None:
    (error,) = errors_of("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {token: hunter2}\n")
    assert (error.line, error.field) == (2, "kind")
    assert "must not be in the source in plain text. Remove the document" in error.message
    assert "hunter2" not in repr(error)


def test_a_key_where_its_hash_belongs_is_not_shown() -> None:
    (error,) = errors_of(head("AccessKey") + "spec: {hash: sk-covey-hunter2}\n")
    assert "hunter2" not in repr(error)
    assert error.message.endswith("got 'sk-covey-…'")


def test_same_object_twice_names_both_places() -> None:
    (error,) = errors_of(MODEL, "# c\n" + MODEL.replace("name: m\n", "name: m\n  namespace: default\n"))
    assert (error.file, error.line) == ("1.yaml", 2)
    assert error.message == "Model 'default/m' must be given once; got it at 0.yaml:1 and 1.yaml:2"


def test_same_name_in_another_namespace_or_kind_is_another_object() -> None:
    assert len(parse(MODEL, PLACEMENT, PLACEMENT.replace("{name: m}", "{name: m, namespace: other}", 1))) == 3


def test_every_error_of_every_file_is_found_in_order() -> None:
    first = MODEL.replace("[Chat]", "[Chatt]").replace("Gguf", "gguf") + "---\nkind: Node\n"
    errors = errors_of(first, "a: [", PLACEMENT + "  replicas: x\n")
    assert [(error.file, error.line) for error in errors] == [
        ("0.yaml", 6),
        ("0.yaml", 9),
        ("0.yaml", 13),
        ("1.yaml", 1),
        ("2.yaml", 6),
    ]


def test_errors_are_bounded() -> None:
    assert len(errors_of("kind: x\n---\n" * 1000)) == MAX_ERRORS
    assert len(errors_of(PLACEMENT + "".join(f"  field{n}: 1\n" for n in range(1000)))) == MAX_ERRORS


def test_wrong_type_is_one_error_not_also_a_wrong_choice() -> None:
    (error,) = errors_of(MODEL.replace("format: Gguf", "format: [Gguf]"))
    assert error.message == "`spec.variants[0].format` must be a string; got a list"


def test_rules_wait_until_the_schema_holds() -> None:
    (error,) = errors_of(PLACEMENT + "  replicas: x\n  context: {tokens: 512, minTokens: 1024}\n")
    assert error.field == "spec.replicas"


def test_entries_of_a_list_have_their_own_lines_and_paths() -> None:
    (error,) = errors_of("apiVersion: v1\nkind: List\nitems:\n- " + (PLACEMENT + "  replicas: x").replace("\n", "\n  "))
    assert (error.line, error.field) == (9, "spec.replicas")
