"""YAML within bounds, with lines, and with every mistake named."""

import pytest
from covey_controller.stores.files.yaml_positions import MAX_PROBLEMS, parse_yaml


def problems_of(text: str | bytes) -> list[tuple[int, str]]:
    file = parse_yaml(text.encode() if isinstance(text, str) else text)
    return [(problem.line, problem.message) for problem in file.problems]


def values_of(text: str) -> list[object]:
    file = parse_yaml(text.encode())
    assert file.problems == ()
    return [document.value for document in file.documents]


def test_documents_without_content_are_none() -> None:
    assert values_of("") == []
    assert values_of("# only a comment\n") == []
    assert values_of("---\n---\n# c\n--- {a: 1}\n---\n") == [{"a": 1}]


def test_json_is_yaml() -> None:
    assert values_of('{\n\t"a": [1, true, null, "\\u00e9\\/"]\n}') == [{"a": [1, True, None, "é/"]}]


def test_byte_order_mark_is_no_content() -> None:
    assert values_of("\ufeffa: 1") == [{"a": 1}]


def test_lines_are_those_of_keys_and_values() -> None:
    (document,) = parse_yaml(b"# c\nspec:\n  list:\n  - a\n  - b: 1\n    c: >\n      text\n").documents
    assert document.line_of(()) == 2
    assert document.line_of(("spec",), key=True) == 2
    assert document.line_of(("spec", "list", 1)) == 5
    assert document.line_of(("spec", "list", 1, "c")) == 6
    assert document.line_of(("spec", "list", 7)) == 3
    assert document.line_of(("spec", "missing", "below")) == 2


def test_aliases_and_merges_are_written_out() -> None:
    text = "base: &b {x: 1, w: 2}\none: {<<: *b, w: 3}\ntwo: {<<: [*b, {z: 9, x: 8}]}\nthree: *b\n"
    assert values_of(text) == [
        {
            "base": {"x": 1, "w": 2},
            "one": {"w": 3, "x": 1},
            "two": {"x": 1, "w": 2, "z": 9},
            "three": {"x": 1, "w": 2},
        }
    ]


def test_value_behind_an_alias_has_the_line_where_it_is_written() -> None:
    (document,) = parse_yaml(b"a: &a\n  b: 1\nc: *a\n").documents
    assert document.line_of(("c", "b")) == 2


def test_keys_are_text_as_json_wants_them() -> None:
    assert values_of("{1: a, true: b, 2.5: c}") == [{"1": "a", "true": "b", "2.5": "c"}]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a:\n\t- b", 2, "file must be valid YAML: indentation must be spaces; got a tab"),
        ("a: 1\nb: \x00", 2, "file must be valid YAML: control characters are not allowed"),
        ("a: [1,\n", 1, "file must be valid YAML: did not find expected node content while parsing a flow node"),
        ("a: 1\n  b: 2", 2, "file must be valid YAML: mapping values are not allowed in this context"),
        (b"a: \xff", 1, "file must be UTF-8; got byte 0xff at offset 3"),
        (b"\xff\xfea\x00", 1, "file must be UTF-8; got byte 0xff at offset 0"),
        ('a: "\\ud800"', 1, "file must be valid YAML: found invalid Unicode character escape code"),
        ('a: "\\0"', 1, "text must not hold the NUL character"),
        ("a: 1\na: 2", 2, "key 'a' must be given once in its mapping; got it on lines 1 and 2"),
        ("a:\n  ? [b]\n  : c", 2, "a key must be a string"),
        ("a: {null: c}", 1, "a key must be a string"),
        ("a: *b", 1, "alias must name an anchor above it; got '*b'"),
        ("a: &a [*a]", 1, "anchor '&a' must not hold itself; got '*a' inside it"),
        ("a: {<<: 5}", 1, "'<<' must name a mapping or a list of them"),
        ("a: .nan", 1, "number must be finite; got '.nan'"),
        ("--- a\n--- *x", 2, "alias must name an anchor above it; got '*x'"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str | bytes, line: int, message: str) -> None:
    (problem,) = problems_of(text)
    assert problem[0] == line
    assert problem[1].startswith(message)


def test_a_tag_on_a_list_makes_nothing_else_of_it() -> None:
    assert values_of("a: !!python/object/apply:os.system [x]") == [{"a": ["x"]}]


def test_every_mistake_of_a_file_is_found_and_sound_documents_are_kept() -> None:
    file = parse_yaml(b"a: 1\na: .inf\n---\nb: 1\n---\nc: &c\nc: 99999999999999999999\n")
    assert [problem.line for problem in file.problems] == [2, 2, 7, 7]
    assert [document.value for document in file.documents] == [{"b": 1}]


def test_mistakes_are_bounded() -> None:
    assert len(problems_of("a: 1\n" * 100_000)) == MAX_PROBLEMS


def test_yaml_bomb_costs_nothing() -> None:
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 30)]
    ((_, message),) = problems_of("a0: &a0 [x]\n" + "".join(levels))
    assert message == "a document must hold at most 100000 values with its aliases written out"


def test_merge_bomb_is_bounded_too() -> None:
    levels = [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 30)]
    ((_, message),) = problems_of("a0: &a0 {x: 1}\n" + "".join(levels))
    assert message.startswith("a document must hold at most")


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 40 + "]" * 40,
        "\n".join("  " * level + "a:" for level in range(60)),
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [[[[*a{n - 1}]]]]\n" for n in range(1, 20)),
        "[" * 100_000,
    ],
)
def test_depth_is_bounded_also_through_aliases(text: str) -> None:
    ((_, message),) = problems_of(text)
    assert "at most 32 levels deep" in message or "maximum nesting depth" in message


def test_size_of_a_file_is_bounded() -> None:
    assert problems_of(b"#" * (4 * 1024 * 1024 + 1)) == [(1, "file must be at most 4194304 bytes; got 4194305")]


def test_syntax_errors_do_not_quote_what_may_be_a_secret() -> None:
    ((_, message),) = problems_of('password: "hunter2\n')
    assert "hunter2" not in message
