"""What went wrong, from what a provider said: one table for all protocols, from status, headers and body to `ProviderFailed`.

Rules:
- The body is believed before the status: providers answer 400, 403, 429 and 500 for a context that is too long, an empty
  account or a refused prompt. What it says is searched for known phrases in one order: overflow, quota, content policy.
- Retryable: rate limit, overload, internal failures. Not: what the same request will meet again. `x-should-retry` decides
  against both.
- `message` is one sentence for people; `fields` keeps status, the provider's own code and request id, and the body, cut at
  16 KiB. Secrets are removed from all of it, before anything is cut.
- No clock: a `retry-after` that is a date is measured from the answer's own `date` header, or from `now_ms` if given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from ..values.failure import (
    PROVIDER_AUTH,
    PROVIDER_CONTENT_FILTER,
    PROVIDER_CONTEXT_OVERFLOW,
    PROVIDER_INTERNAL,
    PROVIDER_INVALID_OUTPUT,
    PROVIDER_INVALID_REQUEST,
    PROVIDER_OVERLOADED,
    PROVIDER_QUOTA,
    PROVIDER_RATE_LIMIT,
    Failure,
)
from .events import ProviderFailed
from .shapes import mapping, sequence
from .unicode import decode_json, well_formed

MAX_BODY: Final = 16 * 1024
"""Characters of a body that are kept."""
_MAX_SEARCHED: Final = 4 * 1024
"""Characters of a body that are searched for phrases: a search takes about a microsecond a character."""
_MAX_DETAIL: Final = 500
_MAX_SAID: Final = 4 * _MAX_DETAIL
"""Characters of a message that are cleaned to make a detail of them. What is cut here does not reach the detail's end."""
_MAX_CODE: Final = 200
_MAX_RETRY_AFTER_MS: Final = 24 * 60 * 60 * 1000

_OVERFLOW: Final = re.compile(
    "|".join(
        (
            r"context[ _-]?length[ _-]?exceeded",
            r"maximum (?:allowed )?context (?:length|size|window)",
            r"exceed\w{0,4}(?: \S+){0,4} (?:context|token) (?:length|size|window|limit)",
            r"context (?:length|size|window)(?: \S+){0,5} (?:exceeded|too (?:long|large|small|short))",
            r"(?:greater|longer|larger|more)(?: \S+){0,3} than the (?:\S+ )?(?:context|maximum(?: \S+){0,3} tokens?)",
            r"(?:prompt|input|conversation|message)s? (?:is|are|was|were) too (?:long|large)",
            r"too (?:long|large) for (?:the |this )?(?:requested )?model",
            r"input (?:length|token count|tokens?)(?: \S+){0,8} exceeds?",
            r"input is too long",
            r"exceeds the (?:maximum|limit) (?:number )?of (?:input |prompt )?tokens",
            r"maximum (?:prompt|input|request) (?:length|size|tokens?)",
            r"max(?:imum)?_(?:input|prompt)_tokens",
            r"reduce (?:the|your)(?: \S+){0,4} (?:length|prompt|input|messages|context)",
            r"context window (?:is )?(?:full|exceeded|exhausted)",
            r"tokens? (?:limit|count)(?: \S+){0,4} exceed",
            r"too many (?:input |prompt |total )?tokens",
            r"prompt_too_long",
            r"string_above_max_length",
            r"range of input length should be",
            r"model_context_window_exceeded",
            r"n_ctx\b|n_keep\b",
        )
    ),
    re.IGNORECASE,
)
_TOO_LARGE: Final = re.compile(r"request[ _](?:entity )?too[ _]large|context_length_exceeded", re.IGNORECASE)
"""Overflow even where a rate is spoken of: a request larger than the whole allowance never passes by waiting."""
_QUOTA: Final = re.compile(
    r"insufficient[ _](?:quota|credits?|balance|funds)|exceeded your current quota|billing[ _](?:hard[ _]limit|not[ _]active)"
    r"|credit balance is too low|payment[ _]required|out of credits|quota[ _]exceeded|account(?: \S+){0,3} balance"
    r"|usage[ _]limit[ _]reached",
    re.IGNORECASE,
)
_PASSING: Final = re.compile(r"per[ _]?(?:min|sec)|retryDelay|throttl|please wait", re.IGNORECASE)
"""Beside a phrase of quota or of too many tokens: it is a rate, and comes back by itself."""
_DAILY: Final = re.compile(r"quotaId\W{1,8}\w{0,100}PerDay", re.IGNORECASE)
"""The name of a quota that is gone for today, whatever delay stands beside it."""
_CONTENT: Final = re.compile(
    r"content[ _-]?(?:policy|filter|management)|content_policy_violation|responsible ?ai|safety (?:system|policy|reasons)"
    r"|flagged (?:as|for|by)|requires moderation|data_inspection_failed|usage polic(?:y|ies)",
    re.IGNORECASE,
)
_AUTH: Final = re.compile(
    r"invalid[ _]api[ _]key|incorrect api key|authentication_error|invalid_authentication|permission_error|unauthorized"
    r"|api[ _]key[ _](?:not[ _]valid|invalid|expired)|api_key_\w{1,40}_blocked|unauthenticated",
    re.IGNORECASE,
)
_RATE: Final = re.compile(r"rate[ _-]?limit|too many requests|resource_exhausted", re.IGNORECASE)
_OVERLOADED: Final = re.compile(r"overloaded|over capacity|server is busy|temporarily unavailable", re.IGNORECASE)
_INVALID: Final = re.compile(r"invalid[ _]request|invalid[ _]argument|model[ _]not[ _]found|not_found_error", re.IGNORECASE)
_LOCK: Final = re.compile(r"\block(?:ed|s)?\b|lock_timeout|conflicting (?:request|operation)", re.IGNORECASE)

_HEADLINES: Final = {
    PROVIDER_AUTH: "The provider refused the API key",
    PROVIDER_QUOTA: "The provider account has no quota or credit left",
    PROVIDER_RATE_LIMIT: "The provider limits the rate of requests",
    PROVIDER_OVERLOADED: "The provider is overloaded",
    PROVIDER_INTERNAL: "The provider failed",
    PROVIDER_INVALID_REQUEST: "The provider refused the request",
    PROVIDER_CONTEXT_OVERFLOW: "The request is longer than the model's context",
    PROVIDER_CONTENT_FILTER: "The provider refused the content",
    PROVIDER_INVALID_OUTPUT: "The provider gave an answer that makes no sense",
}
_RETRYABLE: Final = frozenset((PROVIDER_RATE_LIMIT, PROVIDER_OVERLOADED, PROVIDER_INTERNAL))


def classify_response(status: int, headers: Mapping[str, str], body: bytes, *, now_ms: int | None = None) -> ProviderFailed:
    """What an answer other than 200 means. Header names are lower-case; `now_ms` is epoch milliseconds."""
    text = redact(body[: 2 * MAX_BODY].decode("utf-8", "replace"))
    detail, code, delay = _read_body(body, text)
    type = _by_status(status, f"{code} {detail} {text[:_MAX_SEARCHED]}", headers)
    fields: dict[str, Any] = {"status": status}
    if code:
        fields["code"] = code
    if request_id := headers.get("x-request-id") or headers.get("request-id"):
        fields["request_id"] = _one_line(request_id, 200)
    if text:
        fields["body"] = text[:MAX_BODY]
    return ProviderFailed(
        failure=Failure(type=type, message=_sentence(type, f"HTTP {status}", detail), fields=fields),
        retryable=_retryable(type, status, headers),
        retry_after_ms=wish if (wish := _retry_after_ms(headers, now_ms)) is not None else delay,
    )


def classify_error(error: Any) -> ProviderFailed:
    """What an error inside an answer means: an object, or only a text.

    The request was taken and the answer had begun, so an error that says nothing else is the provider's own.
    """
    detail, code, status = _read_error(error)
    searched = f"{code} {detail}"
    type = _by_text(searched)
    if type is None:
        type = _by_status(status, searched, {}) if status else PROVIDER_INTERNAL
        if _INVALID.search(searched) and not status:
            type = PROVIDER_INVALID_REQUEST
    fields = {"code": code} if code else None
    return ProviderFailed(
        failure=Failure(type=type, message=_sentence(type, "in its answer", detail), fields=fields),
        retryable=type in _RETRYABLE,
        retry_after_ms=_told_delay_ms(error),
    )


def excerpt(data: bytes) -> str:
    """The beginning of something unreadable, on one line, for a message."""
    return _one_line(redact(data[:400].decode("utf-8", "replace")), 120)


# --- kinds ------------------------------------------------------------------------------------------------------------


def _by_text(text: str) -> str | None:
    """The kinds that are known by what is said, whatever the status."""
    passing = _PASSING.search(text) is not None
    if _TOO_LARGE.search(text) or (_OVERFLOW.search(text) and not (passing or _RATE.search(text))):
        return PROVIDER_CONTEXT_OVERFLOW
    if _DAILY.search(text) or (_QUOTA.search(text) and not passing):
        return PROVIDER_QUOTA
    if _CONTENT.search(text):
        return PROVIDER_CONTENT_FILTER
    if _AUTH.search(text):
        return PROVIDER_AUTH
    if _RATE.search(text) or _QUOTA.search(text):
        return PROVIDER_RATE_LIMIT
    if _OVERLOADED.search(text):
        return PROVIDER_OVERLOADED
    return None


def _by_status(status: int, text: str, headers: Mapping[str, str]) -> str:
    said = _by_text(text)
    match status:
        case 401:
            return PROVIDER_AUTH
        case 402:
            return PROVIDER_QUOTA
        case 403:
            return said if said in (PROVIDER_QUOTA, PROVIDER_CONTENT_FILTER) else PROVIDER_AUTH
        case 429 if said == PROVIDER_QUOTA:
            passing = "retry-after" in headers or "retry-after-ms" in headers
            return PROVIDER_RATE_LIMIT if passing and "insufficient" not in text.lower() else PROVIDER_QUOTA
        case 429:
            return said if said == PROVIDER_CONTEXT_OVERFLOW else PROVIDER_RATE_LIMIT
        case 503 | 529:
            return PROVIDER_OVERLOADED
        case 408 | 425 | 499:
            return PROVIDER_INTERNAL
        case 409 if _LOCK.search(text):
            return PROVIDER_INTERNAL
        case 400 | 404 | 409 | 413 | 422:
            refusals = (PROVIDER_CONTEXT_OVERFLOW, PROVIDER_QUOTA, PROVIDER_CONTENT_FILTER, PROVIDER_AUTH)
            return said if said in refusals else PROVIDER_INVALID_REQUEST
        case _ if status >= 500:
            return said if said in (PROVIDER_CONTEXT_OVERFLOW, PROVIDER_OVERLOADED) else PROVIDER_INTERNAL
        case _ if status < 400:
            return PROVIDER_INVALID_OUTPUT
        case _:
            return said if said == PROVIDER_CONTENT_FILTER else PROVIDER_INVALID_REQUEST


def _retryable(type: str, status: int, headers: Mapping[str, str]) -> bool:
    match headers.get("x-should-retry", "").strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            return type in _RETRYABLE and status not in (501, 505)


def _retry_after_ms(headers: Mapping[str, str], now_ms: int | None) -> int | None:
    milliseconds = _milliseconds(headers.get("retry-after-ms"), 1)
    if milliseconds is not None:
        return milliseconds
    wish = headers.get("retry-after")
    milliseconds = _milliseconds(wish, 1000)
    if milliseconds is not None or wish is None:
        return milliseconds
    until = _date_ms(wish)
    start = now_ms if now_ms is not None else _date_ms(headers.get("date"))
    if until is None or start is None:
        return None
    return min(max(until - start, 0), _MAX_RETRY_AFTER_MS)


def _milliseconds(text: str | None, unit: int) -> int | None:
    if text is None:
        return None
    try:
        value = float(text) * unit
    except ValueError:
        return None
    return int(min(value, _MAX_RETRY_AFTER_MS)) if value >= 0 else None


def _date_ms(text: str | None) -> int | None:
    from email.utils import mktime_tz, parsedate_tz

    parsed = parsedate_tz(text) if text is not None else None
    if parsed is None:
        return None
    try:
        return mktime_tz((*parsed[:9], parsed[9] or 0)) * 1000
    except (ValueError, OverflowError):
        return None


_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# --- words ------------------------------------------------------------------------------------------------------------


def _read_body(body: bytes, text: str) -> tuple[str, str, int | None]:
    """What is said, the provider's own word for it, and the delay it wishes for."""
    try:
        value = decode_json(body)
    except ValueError:
        # Pages of proxies say nothing to a person; plain text does.
        return ("" if text.lstrip()[:1] in ("<", "{", "[") else _one_line(text, _MAX_DETAIL)), "", None
    if isinstance(value, list) and value:
        value = cast("list[Any]", value)[0]
    error: Any = cast("dict[str, Any]", value).get("error") if isinstance(value, dict) else None
    detail, code, _ = _read_error(error or value)
    return detail, code, _told_delay_ms(error or value)


def _told_delay_ms(error: Any) -> int | None:
    """Google's `retryDelay`, like "38.5s", which stands among the details of an error."""
    for detail in sequence(mapping(error).get("details")):
        delay = mapping(detail).get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            return _milliseconds(delay[:-1], 1000)
    return None


def _read_error(error: Any) -> tuple[str, str, int]:
    """What is said, the provider's own word for it, and a status, if there are any."""
    if isinstance(error, str):
        return _detail(error), "", 0
    if not isinstance(error, dict):
        return "", "", 0
    found = cast("dict[str, Any]", error)
    inner = found.get("error")
    if isinstance(inner, dict) and not found.get("message"):
        return _read_error(cast("Any", inner))
    detail = next((said for name in ("message", "detail", "error", "msg") if isinstance(said := found.get(name), str)), "")
    words = [
        well_formed(word[: 4 * _MAX_CODE])
        for name in ("code", "type", "status")
        if isinstance(word := found.get(name), str) and word and word != "error"
    ]
    status = next((number for name in ("code", "status") if (number := _status(found.get(name)))), 0)
    return _detail(detail), _one_line(redact(" ".join(words)), _MAX_CODE), status


def _detail(text: str) -> str:
    """What an error says, on one line, in a time that does not depend on how much it says."""
    return _one_line(redact(" ".join(text[: 4 * _MAX_SAID].split())[:_MAX_SAID]), _MAX_DETAIL)


def _status(value: Any) -> int:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and 400 <= value < 600 else 0


def _sentence(type: str, where: str, detail: str) -> str:
    headline = f"{_HEADLINES[type]} ({where})"
    return f"{headline}: {detail}" if detail else f"{headline}."


def _one_line(text: str, limit: int) -> str:
    """What fits of the text, without anything that a terminal would obey."""
    line = _CONTROL.sub("", " ".join(well_formed(text[: 4 * limit]).split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


# --- secrets ----------------------------------------------------------------------------------------------------------

_REDACTED: Final = "[redacted]"
_NAMES: Final = (
    r"(?:x-)?(?:goog-)?api[_-]?key|apikey|key|access[_-]?token|refresh[_-]?token|id[_-]?token|token|auth"
    r"|authorization|client[_-]?secret|secret|password|signature|sig"
)
_SECRETS: Final = (
    # A JSON member, also inside a JSON text that is quoted once more.
    (
        re.compile(rf'(\\{{0,8}}"(?:{_NAMES})\\{{0,8}}"\s*:\s*\\{{0,8}}")[^"\\]*', re.IGNORECASE),
        rf"\1{_REDACTED}",
    ),
    # A parameter of a URL, and the user part of one.
    (re.compile(rf"([?&;](?:{_NAMES})=)[^&\s\"'<>\\]+", re.IGNORECASE), rf"\1{_REDACTED}"),
    (re.compile(r"(://)[^/\s:@\"'<>]{1,200}:[^/\s@\"'<>]{1,200}@"), rf"\1{_REDACTED}@"),
    # A header as text.
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=*-]{4,}", re.IGNORECASE), rf"\1 {_REDACTED}"),
    (re.compile(r"\b(x-api-key|api[_-]?key)(\s*[:=]\s*)[^\s\"',;&<>\[]+", re.IGNORECASE), rf"\1\2{_REDACTED}"),
    # Keys by their own looks: OpenAI and its like, Google, Groq, xAI, Hugging Face, GitHub, AWS, JSON Web Tokens.
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9*_.-]{6,}"), _REDACTED),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{20,}"), _REDACTED),
    (re.compile(r"\b(?:gsk_|xai-|hf_|gh[opsu]_|github_pat_|nvapi-|pplx-)[A-Za-z0-9_-]{10,}"), _REDACTED),
    (re.compile(r"\bAKIA[A-Z0-9]{12,}"), _REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,1000}+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)?"), _REDACTED),
)


def redact(text: str) -> str:
    """The text with everything that looks like a credential replaced."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
