"""Opening a store: who may, what is checked, what survives a crash."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from steerway.protocol.values import MessageId, SessionId
from steerway.protocol.values.errors import StoreInUseError, StoreUnsuitableError, StoreVersionError
from steerway.storage import ownership
from steerway.storage.connections import APPLICATION_ID, check_library, connect_writer
from steerway.storage.database import open_reader
from steerway.storage.ownership import check_file_system, file_system_of
from steerway.storage.rebuild import rebuild_check
from steerway.storage.schema import Migration, load_migrations, migrate
from support.stores import admitted, append, commit, open_store, raw, session_created, there

S = SessionId("ses_1")

OTHER_PROCESS = """
import sys, time
from pathlib import Path
from support.stores import append, admitted, open_store, session_created
from steerway.storage.database import Owner
import os

database = open_store(Path(sys.argv[1]), owner=Owner(id="other", pid=os.getpid(), host="elsewhere"), synchronous="full")
if sys.argv[2] == "hold":
    print("open", flush=True)
    sys.stdin.readline()
    append(database, "ses_held", session_created())
elif sys.argv[2] == "write":
    append(database, "ses_1", session_created())
    number = 0
    while True:
        number += 1
        print(*append(database, "ses_1", admitted(f"msg_{number}", "x" * 500)), flush=True)
"""


def other_process(path: Path, task: str) -> subprocess.Popen[str]:
    """Another process that owns the store at `path`."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(path), task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline(), process.stderr.read() if process.stderr else ""
    return process


def finish(process: subprocess.Popen[str], signal_number: int | None = None) -> tuple[int, str, str]:
    if signal_number is not None:
        process.send_signal(signal_number)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


# --- the file -----------------------------------------------------------------------------------------------------


def test_a_new_store_is_private_and_marked_as_ours(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "store.db"
    database = open_store(path)
    append(database, S, session_created())
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}.lock")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    database.close()
    assert raw(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert raw(path, "SELECT number FROM migration") == [(1,)]
    assert not Path(f"{path}-wal").exists()


def test_a_store_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    path.chmod(0o644)
    open_store(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_committed_is_there_after_closing(tmp_path: Path) -> None:
    database = open_store(tmp_path / "store.db")
    append(database, S, session_created("Kept"))
    database.close()
    database.close()
    database = open_store(tmp_path / "store.db")
    assert commit(database, lambda transaction: transaction.session(S)).session.title == "Kept"
    database.close()


@pytest.mark.parametrize("synchronous", [("full", 2), ("normal", 1)])
def test_every_setting_is_read_back(tmp_path: Path, synchronous: tuple[str, int]) -> None:
    open_store(tmp_path / "store.db").close()
    connection = connect_writer(tmp_path / "store.db", "full" if synchronous[0] == "full" else "normal")
    settings = {
        name: connection.pragma(name)
        for name in ("journal_mode", "synchronous", "foreign_keys", "wal_autocheckpoint", "busy_timeout", "journal_size_limit")
    }
    connection.close()
    assert settings == {
        "journal_mode": "wal",
        "synchronous": synchronous[1],
        "foreign_keys": 1,
        "wal_autocheckpoint": 4_000,
        "busy_timeout": 5_000,
        "journal_size_limit": 64 * 1024 * 1024,
    }


@pytest.mark.parametrize("version", ["3.51.2", "3.50.10", "3.9.0"])
def test_a_library_that_can_lose_commits_is_refused(version: str) -> None:
    with pytest.raises(StoreVersionError, match=version):
        check_library(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.60.0", "4.0.0"])
def test_a_newer_library_is_fine(version: str) -> None:
    check_library(version)


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    raw(path, "CREATE TABLE theirs (a)")
    before = path.read_bytes()
    for opening in (open_store, open_reader):
        with pytest.raises(StoreUnsuitableError, match="another program"):
            opening(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 100)
    for opening in (open_store, open_reader):
        with pytest.raises(StoreUnsuitableError, match="not a database"):
            opening(path)
    assert path.read_text().startswith("Dear reader")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsuitableError):
        open_store(tmp_path)


# --- ownership ----------------------------------------------------------------------------------------------------


def test_a_second_opener_in_this_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    (tmp_path / "link.db").symlink_to(path)
    os.link(path, tmp_path / "same.db")
    for name in ("store.db", "link.db", "same.db"):
        with pytest.raises(StoreInUseError, match="share its runtime"):
            open_store(tmp_path / name)
    with pytest.raises(StoreInUseError):
        open_store(path, take_over=True)
    database.close()
    open_store(path).close()


def test_a_refused_opening_leaves_the_owner_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    with pytest.raises(StoreInUseError):
        open_store(path)
    process = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(path), "hold"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "StoreInUseError" in process.stderr
    database.close()


def test_another_process_is_named_with_pid_and_host_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = other_process(path, "hold")
    with pytest.raises(StoreInUseError, match=f"{process.pid} on elsewhere") as caught:
        open_store(path)
    assert (caught.value.fields["pid"], caught.value.fields["host"]) == (process.pid, "elsewhere")
    finish(process, signal.SIGKILL)
    open_store(path).close()


def test_taking_over_fences_the_former_owner(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = other_process(path, "hold")
    database = open_store(path, take_over=True)
    append(database, S, session_created())
    assert process.stdin is not None
    process.stdin.write("\n")
    code, _, err = finish(process)
    assert code != 0
    assert "StoreInUseError" in err
    assert "taken the store over" in err
    assert not commit(database, there(SessionId("ses_held")))
    third = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(path), "hold"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"Process {os.getpid()} on here owns" in third.stderr
    assert append(database, S, admitted(MessageId("msg_1"))) == [2]
    database.close()


def test_a_reader_needs_no_ownership(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    append(database, S, session_created("Seen"))
    reader = open_reader(path)
    assert reader.session(S).title == "Seen"
    append(database, S, admitted(MessageId("msg_1")))
    assert reader.head(S) == 2
    assert database.writer.checkpoint()
    reader.close()
    database.close()
    reader = open_reader(path)
    assert reader.head(S) == 2
    reader.close()


def test_reading_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsuitableError):
        open_reader(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = other_process(path, "write")
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(40)]
    _, rest, _ = finish(process, signal.SIGKILL)
    acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    database = open_store(path)
    reader = database.open_reader()
    seqs = [seq for seq, _ in reader.events_page(S, 0, 1_000_000, 1 << 40)]
    reader.close()
    database.close()
    assert seqs == list(range(1, len(seqs) + 1))
    assert set(acknowledged) <= set(seqs)
    assert rebuild_check(path) == []


# --- network file systems -----------------------------------------------------------------------------------------

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 8:2 / /home/local\\040disk rw - xfs /dev/sdb1 rw
32 22 0:41 / /data rw - ext4 /dev/sdc1 rw
33 22 0:42 / /data rw master:2 propagate_from:3 - fuse.sshfs server: rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/home/me", "nfs4"),
        ("/homestead", "ext4"),
        ("/home/local disk/a", "xfs"),
        ("/data/a", "fuse.sshfs"),
    ],
)
def test_a_folder_is_on_the_innermost_and_latest_mount(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind


def test_a_network_file_system_is_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(ownership, "MOUNTS", table)
    with pytest.raises(StoreUnsuitableError, match="nfs4"):
        check_file_system(Path("/home/me"), force=False)
    check_file_system(Path("/home/me"), force=True)
    check_file_system(Path("/var"), force=False)


# --- generation ---------------------------------------------------------------------------------------------------


def test_the_generation_stays_while_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    generation = database.generation
    database.close()
    database = open_store(path)
    assert database.generation == generation
    database.close()


def test_a_copied_file_is_another_history(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    first = database.generation
    database.close()
    shutil.copy(path, tmp_path / "copy.db")
    database = open_store(tmp_path / "copy.db")
    second = database.generation
    assert second != first
    database.close()
    database = open_store(tmp_path / "copy.db")
    assert database.generation == second
    database.close()


def test_a_marked_copy_is_another_history_even_in_place(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    first = database.generation
    database.close()
    raw(path, "UPDATE store SET copied = 1")
    database = open_store(path)
    assert database.generation != first
    database.close()
    assert raw(path, "SELECT copied FROM store") == [(0,)]


# --- migrations ---------------------------------------------------------------------------------------------------


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    raw(path, "PRAGMA user_version = 99")
    for opening in (open_store, open_reader):
        with pytest.raises(StoreVersionError, match="99"):
            opening(path)


def test_a_store_that_was_never_set_up_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreUnsuitableError, match="up to date"):
        open_reader(tmp_path / "empty.db")


def test_migrations_are_numbered_without_gaps() -> None:
    migrations = load_migrations()
    assert [migration.number for migration in migrations] == list(range(1, len(migrations) + 1))


def test_a_migration_keeps_a_copy_of_the_former_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = open_store(path)
    append(database, S, session_created("Before"))
    database.close()
    known = load_migrations()
    later = Migration(len(known) + 1, "later", "CREATE TABLE later (a TEXT) STRICT")
    connection = connect_writer(path, "normal")
    kept = migrate(connection, path, (*known, later), 5)
    connection.close()
    assert kept is not None
    assert kept == tmp_path / f"store.db.version-{len(known)}"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert raw(path, "SELECT number, name, applied FROM migration ORDER BY number DESC LIMIT 1") == [
        (len(known) + 1, "later", 5)
    ]
    assert raw(kept, "SELECT title FROM session") == [("Before",)]
    assert raw(kept, "SELECT copied FROM store") == [(1,)]
    open_store(kept).close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    known = load_migrations()
    bad = Migration(len(known) + 1, "bad", "CREATE TABLE half (a); CREATE TABLE session (a);")
    connection = connect_writer(path, "normal")
    with pytest.raises(apsw.SQLError):
        migrate(connection, path, (*known, bad), 5)
    connection.close()
    assert raw(path, "PRAGMA user_version") == [(len(known),)]
    assert raw(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'") == [(0,)]
    open_store(path).close()
