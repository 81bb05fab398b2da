"""The log of the commands, when nothing takes it."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steerway.actors.commands.logs import Unfailing

FULL = Path("/dev/full")

LOGGING_MUCH = """
import logging, sys
import structlog
from steerway.actors.commands.logs import configure_logs
configure_logs(sys.argv[1])
for number in range(1_000):
    structlog.get_logger().error("commit failed", number=number)
    logging.getLogger("library").error("so did this")
try:
    raise ValueError("told with its traceback")
except ValueError:
    structlog.get_logger().exception("defect")
print("still here", flush=True)
"""


class FillingDisk(io.StringIO):
    """Takes nothing while it is full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_log_that_cannot_be_written_stops_nothing(log_format: str) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", LOGGING_MUCH, log_format],
            check=False,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            timeout=60,
        )
    assert done.stdout == "still here\n"


def test_a_log_whose_reader_has_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-c", LOGGING_MUCH, "json"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=gone,
            text=True,
            timeout=60,
        )
    assert done.stdout == "still here\n"


def test_what_follows_a_loss_begins_a_line_of_its_own() -> None:
    disk = FillingDisk()
    log = Unfailing(disk)
    log.write("first\nhalf of the sec")
    disk.full = True
    log.write("third\n")
    log.write("fourth\n")
    disk.full = False
    log.write("fifth\n")
    log.write("sixth\n")
    assert disk.getvalue().splitlines() == ["first", "half of the sec", "fifth", "sixth"]
