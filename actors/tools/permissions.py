"""Permission rules: what a list of rules says about an action on resources. Pure; who asks whom is not decided here.

Rules (semantics, "Permissions and questions"; reference 3.12; ruling C6):
- A rule's action and resource are patterns over the whole text: `*` is any text, `?` any one character, backslashes count as
  slashes. A pattern that ends in a space and `*` also matches without that ending: `git *` is `git`, too.
- Of the rules that match, the last one decides; where none matches, somebody is asked. An action on several resources is
  denied if one of them is, and asked about if one of them is.
- Saved approvals stand behind an agent's rules, but the rules alone are consulted first: what they deny stays denied.
- The built-in rules stand before whatever is configured for an agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from ...protocol.values.permission import Effect, Rule, SavedPermission

GUARDED_ACTIONS: Final = ("shell", "write", "edit")
"""What changes something: `build` asks for these, `plan` is denied them."""
PLAN_AGENT: Final = "plan"

_OPTIONAL_REST: Final = " *"


def built_in_rules(agent: str) -> tuple[Rule, ...]:
    """The rules that stand before the configured ones of an agent (ruling C6)."""
    effect: Effect = "deny" if agent == PLAN_AGENT else "ask"
    guarded = [Rule(action=action, resource="*", effect=effect) for action in GUARDED_ACTIONS]
    return (Rule(action="*", resource="*", effect="allow"), *guarded)


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern of a rule matches the whole text. Takes time in proportion to the text, whatever the pattern."""
    text = text.replace("\\", "/")
    return any(expression.fullmatch(text) is not None for expression in _compiled(pattern))


def evaluate(rules: Sequence[Rule], action: str, resources: Sequence[str]) -> Effect:
    """What the rules say about an action on these resources. An action without resources counts as one on everything."""
    effects = {_effect(rules, action, resource) for resource in resources or ("*",)}
    if "deny" in effects:
        return "deny"
    return "ask" if "ask" in effects else "allow"


def decide(rules: Sequence[Rule], saved: Iterable[SavedPermission], action: str, resources: Sequence[str]) -> Effect:
    """What the rules and the approvals that were saved for their directory come to together."""
    alone = evaluate(rules, action, resources)
    if alone != "ask":
        return alone
    approved = [Rule(action=one.action, resource=one.resource, effect="allow") for one in saved]
    return evaluate([*rules, *approved], action, resources)


def hidden(rules: Sequence[Rule], action: str) -> bool:
    """Whether a tool of this action is not even offered: the last rule for the action denies every resource."""
    last = next((rule for rule in reversed(rules) if matches(rule.action, action)), None)
    return last is not None and last.resource == "*" and last.effect == "deny"


def _effect(rules: Sequence[Rule], action: str, resource: str) -> Effect:
    for rule in reversed(rules):
        if matches(rule.action, action) and matches(rule.resource, resource):
            return rule.effect
    return "ask"


@lru_cache(maxsize=4_096)
def _compiled(pattern: str) -> tuple[re.Pattern[str], ...]:
    pattern = pattern.replace("\\", "/")
    forms = [pattern]
    if pattern.endswith(_OPTIONAL_REST):
        forms.append(pattern.removesuffix(_OPTIONAL_REST))
    return tuple(_expression(form) for form in forms)


def _expression(pattern: str) -> re.Pattern[str]:
    """Each piece between two stars is taken where it first fits and never given back, which keeps matching linear."""
    first, *others = ["".join("." if letter == "?" else re.escape(letter) for letter in part) for part in pattern.split("*")]
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    return re.compile(first + middle + (f".*{others[-1]}" if others else ""), re.DOTALL)
