"""Build the source archive and the wheel, install the wheel in a new environment, and use it from an empty directory.

Rules:
- It is a program for `make check`, not a test module: it needs a package registry and longer than a test may take.
- The wheel is built from the source archive, so that a file missing in either is noticed.
- Nothing of the clone may be importable in the new environment: the commands run isolated and in an empty directory.
- It ends with the first failure, saying what failed and with which output.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("actors", "protocol", "storage")

IMPORT_EVERYTHING = """
import importlib, pathlib, pkgutil, sys
import steerway
home = pathlib.Path(steerway.__file__).resolve()
assert home.is_relative_to(pathlib.Path(sys.prefix).resolve()), f"loaded from {home}"
names = {module.name for module in pkgutil.walk_packages(steerway.__path__, "steerway.")} - {"steerway.__main__"}
for name in names:
    importlib.import_module(name)
for name in steerway.__all__:
    getattr(steerway, name)
print(len(names))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run `command` in `cwd` without this shell's Python settings; its output, or an exit with what failed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "STEERWAY_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        shown = " ".join(str(part) for part in command)
        sys.exit(f"wheel smoke test: `{shown}` ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def package_files() -> set[str]:
    """Every file that has to be in the wheel, as a path below the package."""
    files = {"__init__.py", "__main__.py", "py.typed"}
    for floor in FLOORS:
        for suffix in ("py", "sql"):
            files.update(path.relative_to(ROOT).as_posix() for path in (ROOT / floor).rglob(f"*.{suffix}"))
    return files


def examine(archive: Path, wheel: Path) -> None:
    """Compare what was built with what stands on the disk; exits on the first difference."""
    wanted = package_files()
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    top = {name.split("/", 1)[0] for name in names}
    if unexpected := {name for name in top if name != "steerway" and not name.endswith(".dist-info")}:
        sys.exit(f"wheel smoke test: the wheel would install {sorted(unexpected)} beside steerway")
    found = {name.removeprefix("steerway/") for name in names if name.startswith("steerway/")}
    if found != wanted:
        sys.exit(f"wheel smoke test: missing in the wheel {sorted(wanted - found)}, unexpected {sorted(found - wanted)}")
    with tarfile.open(archive) as opened:
        inside = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    if absent := {"Makefile", "constraints.txt", "tests/test_packaging.py"} - inside:
        sys.exit(f"wheel smoke test: missing in the source archive {sorted(absent)}")


def main() -> None:
    """Build, examine, install, use."""
    with tempfile.TemporaryDirectory(prefix="steerway wheel ") as folder:
        here = Path(folder)
        built, venv, empty = here / "built", here / "venv", here / "empty"
        empty.mkdir()
        run(sys.executable, "-m", "build", "--outdir", built, ROOT, cwd=empty)
        (archive,), (wheel,) = list(built.glob("*.tar.gz")), list(built.glob("*.whl"))
        examine(archive, wheel)

        run(sys.executable, "-m", "venv", venv, cwd=empty)
        python, steerway = venv / "bin" / "python", venv / "bin" / "steerway"
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        run(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=empty)
        modules = run(python, "-I", "-W", "error", "-c", IMPORT_EVERYTHING, cwd=empty).strip()
        run(python, "-m", "steerway", "--help", cwd=empty)
        run(steerway, "demo", cwd=empty)
        if left := sorted(path.name for path in empty.iterdir()):
            sys.exit(f"wheel smoke test: the demo left {left} in the working directory")
        print(f"wheel smoke test: {wheel.name} installs, {modules} modules import, the demo runs")


if __name__ == "__main__":
    main()
