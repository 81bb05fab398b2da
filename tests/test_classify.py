"""What failures of a provider mean, by body and status; and what is kept of them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from steerway.protocol.llm.classify import MAX_BODY, classify_error, classify_response, redact


def error(message: str, code: str | None = None, type: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": type, "param": None, "code": code}}).encode()


OVERFLOW = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "prompt is too long: 250000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 199000 + 20000 > 200000",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Input is too long for requested model.",
    "Please reduce the length of the messages or completion.",
    "the request exceeds the available context size, try increasing it",
    "This endpoint's maximum context length is 131072 tokens. However, you requested about 200000 tokens",
    "Requested token count exceeds the model's maximum context length of 32768 tokens",
    "Your input exceeds the context window of this model.",
    "tokens to keep from the initial prompt is greater than the context length",
    "prompt too long; exceeded max context length by 4 tokens",
    "The prompt is longer than the maximum number of tokens",
    "Range of input length should be [1, 30720]",
    "Too many tokens in the prompt",
    "Invalid request: Your request exceeded model token limit: 262144",
    "invalid params, context window exceeds limit: context window exceeded",
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "input tokens exceed the configured limit of 272000 tokens",
)


@pytest.mark.parametrize("message", OVERFLOW)
def test_a_context_that_is_too_long_is_recognised_by_what_is_said(message: str) -> None:
    for status in (400, 413, 422, 500):
        failed = classify_response(status, {}, error(message, type="invalid_request_error"))
        assert (failed.failure.type, failed.retryable) == ("provider.context-overflow", False)
    assert classify_error({"message": message}).failure.type == "provider.context-overflow"


ANSWERS: list[tuple[int, bytes, str, bool]] = [
    (400, error("'messages' is a required property", type="invalid_request_error"), "provider.invalid-request", False),
    (400, error("max_tokens is too large: 100000. This model supports at most 16384"), "provider.invalid-request", False),
    (400, error("x", "context_length_exceeded"), "provider.context-overflow", False),
    (400, error("Your request was rejected as a result of our safety system."), "provider.content-filter", False),
    (400, error("The response was filtered", "content_filter"), "provider.content-filter", False),
    (400, error("Your credit balance is too low to access the API."), "provider.quota", False),
    (400, b"not json", "provider.invalid-request", False),
    (401, error("Incorrect API key provided: sk-abc***xyz"), "provider.auth", False),
    (403, error("Country not supported"), "provider.auth", False),
    (
        403,
        error("Your chosen model requires moderation and your input was flagged for violence"),
        "provider.content-filter",
        False,
    ),
    (402, error("Insufficient credits"), "provider.quota", False),
    (404, error("The model `x` does not exist", "model_not_found"), "provider.invalid-request", False),
    (404, b"<html>not found</html>", "provider.invalid-request", False),
    (405, b"", "provider.invalid-request", False),
    (408, b"", "provider.internal", True),
    (409, error("Resource is locked by a conflicting operation"), "provider.internal", True),
    (409, error("Duplicate"), "provider.invalid-request", False),
    (
        413,
        error("Request too large for model `x` on tokens per minute (TPM)", "rate_limit_exceeded"),
        "provider.context-overflow",
        False,
    ),
    (422, error("Unprocessable"), "provider.invalid-request", False),
    (429, error("Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000"), "provider.rate-limit", True),
    (429, error("Too many tokens, please wait before trying again."), "provider.rate-limit", True),
    (429, error("You exceeded your current quota, please check your plan", "insufficient_quota"), "provider.quota", False),
    (429, error("You exceeded your current quota. Quota exceeded for requests per minute"), "provider.rate-limit", True),
    (429, error("Request too large for gpt-4o: Limit 30000, Requested 42000."), "provider.context-overflow", False),
    (429, b"", "provider.rate-limit", True),
    (500, error("The server had an error", type="server_error"), "provider.internal", True),
    (500, error("Overloaded", type="overloaded_error"), "provider.overloaded", True),
    (501, b"", "provider.internal", False),
    (502, b"<html>Bad gateway</html>", "provider.internal", True),
    (503, b"", "provider.overloaded", True),
    (529, error("Overloaded", type="overloaded_error"), "provider.overloaded", True),
    (302, b"", "provider.invalid-output", False),
    (304, b"", "provider.invalid-output", False),
    (204, b"", "provider.invalid-output", False),
]


@pytest.mark.parametrize(("status", "body", "type", "retryable"), ANSWERS)
def test_an_answer_is_classified_by_body_and_status(status: int, body: bytes, type: str, retryable: bool) -> None:
    failed = classify_response(status, {}, body)
    assert (failed.failure.type, failed.retryable, failed.retry_after_ms) == (type, retryable, None)
    assert f"HTTP {status}" in failed.failure.message
    assert "\n" not in failed.failure.message
    assert "<" not in failed.failure.message
    assert (failed.failure.fields or {})["status"] == status


def test_a_spent_quota_that_comes_back_by_itself_is_a_rate() -> None:
    spent = error("You exceeded your current quota, please check your plan")
    assert classify_response(429, {}, spent).failure.type == "provider.quota"
    assert classify_response(429, {"retry-after": "30"}, spent).failure.type == "provider.rate-limit"
    gone = error("You exceeded your current quota", "insufficient_quota")
    assert classify_response(429, {"retry-after": "30"}, gone).failure.type == "provider.quota"


@pytest.mark.parametrize(
    ("value", "type", "retryable"),
    [
        ({"message": "boom"}, "provider.internal", True),
        ("boom", "provider.internal", True),
        (None, "provider.internal", True),
        ({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "provider.rate-limit", True),
        ({"message": "no", "type": "invalid_request_error"}, "provider.invalid-request", False),
        ({"message": "upstream", "code": 502}, "provider.internal", True),
        ({"message": "upstream", "code": "503"}, "provider.overloaded", True),
        ({"message": 5, "code": []}, "provider.internal", True),
    ],
)
def test_an_error_inside_an_answer_is_the_providers_unless_it_says_otherwise(value: Any, type: str, retryable: bool) -> None:
    failed = classify_error(value)
    assert (failed.failure.type, failed.retryable) == (type, retryable)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1500),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e300"}, 86_400_000),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 10_000),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT", "date": "Wed, 21 Oct 2015 07:29:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT"}, None),
        ({}, None),
    ],
)
def test_the_provider_says_when_to_come_back(headers: Mapping[str, str], expected: int | None) -> None:
    assert classify_response(429, headers, b"").retry_after_ms == expected


def test_a_date_to_come_back_is_measured_from_a_clock_when_one_is_given() -> None:
    headers = {"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT"}
    assert classify_response(429, headers, b"", now_ms=1_445_412_480_000).retry_after_ms == 10_000


def test_the_provider_overrides_what_can_be_retried() -> None:
    assert classify_response(400, {"x-should-retry": "true"}, b"").retryable
    assert not classify_response(500, {"x-should-retry": "false"}, b"").retryable


SECRET = "Zx81secretsecretsecret99"


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: sk-proj-{SECRET}. You can",
        f"authorization: Bearer {SECRET}",
        f'{{"headers": {{"Authorization": "Bearer {SECRET}"}}}}',
        f'{{"api_key": "{SECRET}", "x": 1}}',
        f'{{"error": "{{\\"x-api-key\\": \\"{SECRET}\\"}}"}}',
        f"GET https://host/v1?api_key={SECRET}&x=1 failed",
        f"GET https://host/v1?key={SECRET} failed",
        f"https://user:{SECRET}@host/v1",
        f"AIza{SECRET}",
        f"api-key: {SECRET}",
        f"gsk_{SECRET}",
        f"eyJhbGciOiJI.{SECRET}.{SECRET}",
    ],
)
def test_secrets_are_removed_from_everything_that_is_kept(text: str) -> None:
    assert SECRET not in redact(text)
    for body in (text.encode(), json.dumps({"error": {"message": text, "code": text}}).encode()):
        failed = classify_response(400, {}, body)
        assert SECRET not in failed.failure.message
        assert SECRET not in json.dumps(failed.failure.fields)
    assert SECRET not in classify_error({"message": text}).failure.message


def test_a_long_body_is_cut_after_its_secrets_are_gone() -> None:
    body = b"x" * (MAX_BODY - 10) + b" sk-" + SECRET.encode() + b" " + b"y" * 100_000
    kept = (classify_response(400, {}, body).failure.fields or {})["body"]
    assert len(kept) == MAX_BODY
    assert SECRET[:6] not in kept


def test_redaction_leaves_ordinary_text_alone() -> None:
    text = '{"error": {"message": "The key idea: tokens per minute", "code": "rate_limit"}} https://host/v1?model=x'
    assert redact(text) == text
