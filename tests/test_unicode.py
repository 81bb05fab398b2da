"""Strings are made well-formed where they enter, and what JSON could not be is refused as a ValueError."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerway.protocol.llm.arguments import MAX_ARGUMENT_DEPTH, parse_arguments
from steerway.protocol.llm.unicode import (
    SurrogateJoiner,
    decode_json,
    is_encodable,
    is_well_formed,
    well_formed,
    well_formed_value,
)

ANY_TEXT = st.text(st.one_of(st.characters(categories=("Cs",)), st.characters(), st.sampled_from("\ud83d\ude00a")), max_size=12)
"""Text with many surrogates, in pairs and alone."""


def test_a_well_formed_string_is_handed_back_as_it_is() -> None:
    text = "grüße 😀 \x00"
    assert well_formed(text) is text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ud83d\ude00", "😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("😀\ud83dé", "😀\ufffdé"),
    ],
)
def test_pairs_are_joined_and_lone_surrogates_replaced(text: str, expected: str) -> None:
    assert well_formed(text) == expected


@settings(max_examples=100, deadline=None)
@given(ANY_TEXT)
def test_every_repaired_string_can_be_encoded_and_repair_is_idempotent(text: str) -> None:
    repaired = well_formed(text)
    assert repaired.encode().decode() == repaired
    assert is_well_formed(repaired)
    assert well_formed(repaired) is repaired


@settings(max_examples=100, deadline=None)
@given(st.lists(ANY_TEXT, max_size=6))
def test_joined_deltas_are_the_repair_of_the_whole_however_it_is_cut(deltas: list[str]) -> None:
    joiner = SurrogateJoiner()
    pieces = [joiner.feed(delta) for delta in deltas] + [joiner.close()]
    assert all(map(is_well_formed, pieces))
    assert "".join(pieces) == well_formed("".join(deltas))


def test_half_a_pair_waits_for_the_other_half_over_an_empty_delta() -> None:
    joiner = SurrogateJoiner()
    assert [joiner.feed("x\ud83d"), joiner.feed(""), joiner.feed("\ude00y"), joiner.close()] == ["x", "", "😀y", ""]


@pytest.mark.parametrize("body", [b'{"a": "\\ud83d", "b": ["\\ude00"]}', b'{"\\ud83d": 1}', b'"tab\there"', b'"\xff"'])
def test_json_that_msgspec_refuses_for_its_strings_is_decoded_all_the_same(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body)
    value = decode_json(body)
    assert value == json.loads(body.decode("utf-8", "replace"), strict=False)
    assert is_encodable(well_formed_value(value))


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b"[" * 100_000, b'{"a":1}}', b"1" * 5000 + b"x", b"\x00"])
def test_what_is_no_json_is_a_value_error_and_nothing_else(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_json(body)


def test_nested_keys_and_items_are_repaired_and_the_good_is_kept() -> None:
    value = {"\ud83d": [{"k": "\ude00"}, ("\ud83d\ude00", 1, None, True, 0.5)], "ok": "ok"}
    assert well_formed_value(value) == {"\ufffd": [{"k": "\ufffd"}, ["😀", 1, None, True, 0.5]], "ok": "ok"}
    good = {"a": ["b", {"c": 1}]}
    assert well_formed_value(good) is good


def test_what_json_cannot_say_is_still_made_sendable() -> None:
    deep: Any = "\ud83d"
    for _ in range(5000):
        deep = [deep]
    for value in (deep, {1.5: "\ud83d", None: object()}, ["\ud83d", 2**80]):
        assert is_encodable(well_formed_value(value))


@pytest.mark.parametrize("number", ["1" + "0" * 30, "-9223372036854775809", "NaN", "-Infinity", "1e400"])
def test_a_number_that_one_codec_cannot_carry_is_repaired_where_it_enters(number: str) -> None:
    value = well_formed_value(decode_json(b'{"n": [%s]}' % number.encode()))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == msgspec.json.decode(msgspec.json.encode(value)) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(JSON)
def test_every_json_value_survives_its_escaped_spelling(value: Any) -> None:
    decoded = decode_json(json.dumps(value).encode())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(well_formed_value(decoded))) == well_formed_value(value)


# --- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        (' {"a": [1, {"b": null}]} ', {"a": [1, {"b": None}]}),
        ('{"e": "\\ud83d\\ude00", "l": "\\ud83d"}', {"e": "😀", "l": "\ufffd"}),
        ('{"l": [["\\ude00"]]}', {"l": [["\ufffd"]]}),
        ('{"big": 18446744073709551615}', {"big": 2**64 - 1}),
    ],
)
def test_an_object_is_read_and_nothing_is_the_empty_object(raw: str, expected: dict[str, Any]) -> None:
    assert parse_arguments(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [
        '{"a": 1',
        "[1]",
        '"text"',
        "null",
        "7",
        '{"a": 1, "a": 1}',
        '{"x": {"a": 1, "a": 2}}',
        '{"\\ud83d": 1, "\\ude00": 2}',
        '{"a": "line\nbreak"}',
        '{"a": "\x01"}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": 18446744073709551616}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' + "[" * MAX_ARGUMENT_DEPTH + "]" * MAX_ARGUMENT_DEPTH + "}",
        '{"a": ' * 50_000,
        '{"a": 1} trailing',
        "```json\n{}\n```",
    ],
)
def test_what_could_be_read_in_two_ways_or_not_at_all_is_no_input(raw: str) -> None:
    assert parse_arguments(raw) is None


@settings(max_examples=80, deadline=None)
@given(st.one_of(ANY_TEXT.map(well_formed), JSON.map(json.dumps)))
def test_every_accepted_input_can_be_stored_and_sent(raw: str) -> None:
    found = parse_arguments(raw)
    if found is not None:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(found)) == found
        assert msgspec.json.decode(msgspec.json.encode(found)) == found
