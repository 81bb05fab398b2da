"""Ask every question of this folder, or those named, and write the answers into RESULTS.md.

    make bench                                            all of them
    PYTHONPATH=tests python bench/run.py admissions       one; the sections of the others stay as they are

Rules:
- Each question runs in a process of its own, so that none warms or burdens another. It prints its findings as JSON.
- RESULTS.md has one section a question, with the machine and the day it was measured on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from measure import Finding, machine

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "RESULTS.md"
QUESTIONS = {
    "admissions": "How much of a bare batching thread is left when 256 callers admit prompts durably at the same time?",
    "boundary": "What does a Safe Provider-Turn Boundary cost with 20 sources, and how much of a request is cached prefix?",
    "decoding": "What does decoding a provider's stream cost, beyond splitting it and parsing its JSON?",
    "fan_out": "How close does delivery come to a bare loop that sends bytes?",
    "history": "What does a turn cost as its history grows, beyond sending that history?",
    "idle": "What does a session cost in memory while it rests, and after it has left?",
    "plain_turns": "What does a provider turn cost the server, beyond reading the provider's stream?",
    "start": "How long does a runtime take to its first answer over 100,000 stored sessions, and how large is it then?",
    "table_layout": "Which layout of the event table suits this workload? (raw side: the layout not chosen)",
}
HEAD = """# Results

`make bench` asks all questions and rewrites this file; `PYTHONPATH=tests .venv/bin/python bench/run.py NAME` asks one and
rewrites its section. `BENCH_DIR` names the disk to measure on. Each figure is a median of several rounds in which the
variants take turns; "ratio" is the median of the rounds' ratios. Trust ratios more than rates, CPU time more than wall time.
An empty target marks a figure that stands beside the others for comparison.
"""


def ask(name: str) -> str:
    """The section that answers one question."""
    begun = time.perf_counter()
    program = subprocess.run([sys.executable, str(FOLDER / f"{name}.py"), "--json"], stdout=subprocess.PIPE, check=True)
    findings = [Finding(**fields) for fields in json.loads(program.stdout)]
    rows = [
        f"| {found.what} | {found.ours} | {found.raw} | {found.ratio} | {found.target} | {found.verdict} |"
        for found in findings
    ]
    took = time.perf_counter() - begun
    lines = [
        f"## {name}",
        QUESTIONS[name],
        "",
        "| what | steerway | raw limit | ratio | target | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"{machine()} · {datetime.now(UTC):%Y-%m-%d} · {took:.0f} s",
        "",
    ]
    return "\n".join(lines)


def sections() -> dict[str, str]:
    """What RESULTS.md holds now, by question."""
    if not RESULTS.exists():
        return {}
    parts = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.split("\n", 1)[0]: f"## {part.rstrip()}\n" for part in parts}


def main() -> None:
    """Ask, print as the answers come, and write the file."""
    asked = sys.argv[1:] or list(QUESTIONS)
    unknown = [name for name in asked if name not in QUESTIONS]
    if unknown:
        sys.exit(f"There is no question {unknown[0]!r}; ask {', '.join(QUESTIONS)}.")
    found = sections()
    for name in asked:
        found[name] = ask(name)
        print(found[name], flush=True)
    text = "\n".join([HEAD, *(found[name] for name in QUESTIONS if name in found)])
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
