"""The doctor as a check at the end of tests."""

from __future__ import annotations

from pathlib import Path

from steerway.storage.doctor import examine


def assert_healthy(path: Path) -> None:
    """Nothing is wrong with the store at `path`, and its projections are what its log says."""
    report = examine(path)
    assert report.compared or report.findings
    assert not report.findings, "\n".join(f"{finding.check}: {finding.where} {finding.message}" for finding in report.findings)
