"""Strangers named `tasks` and `models` in site-packages, against the real `celery` command.

What Celery does by itself: it puts the current folder first on sys.path, unless that folder is on
sys.path already. So from the root our `tasks` wins, but not if something put the root at the end.
Our rule (the root first on PYTHONPATH) wins in every case.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from rejoinder import boot
from tests.owners import ROOT

OURS = "task_default_queue: 'rejoinder.control'"
STRANGER = "from celery import Celery\napp = Celery('stranger')\nprint('a stranger was imported')\n"


class Site:
    """A virtual environment that has our dependencies, and strangers before them."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        self.packages = Path(
            sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
        )
        (self.packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def add_stranger(self, name: str) -> Path:
        package = self.packages / name
        package.mkdir()
        (package / "__init__.py").write_text(STRANGER)
        return package

    def put_root_last(self) -> None:
        (self.packages / "zzz.pth").write_text(f"{ROOT}\n")

    def celery_report(self, pythonpath: str | None) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if pythonpath is not None:
            env["PYTHONPATH"] = pythonpath
        program = "import sys; sys.path.remove(''); from celery.__main__ import main; main()"
        return subprocess.run(
            [str(self.python), "-c", program, "-A", "tasks", "report"],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "venv")


@pytest.mark.parametrize("root_last", [False, True])
def test_with_the_root_first_on_pythonpath_the_app_is_ours(site: Site, *, root_last: bool) -> None:
    site.add_stranger("tasks")
    site.add_stranger("models")
    if root_last:
        site.put_root_last()
    done = site.celery_report(pythonpath=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert OURS in done.stdout
    assert "a stranger" not in done.stdout


def test_a_stranger_named_models_is_refused_by_name_and_path(site: Site) -> None:
    stranger = site.add_stranger("models")
    done = site.celery_report(pythonpath=f"{site.packages}{os.pathsep}{ROOT}")
    assert done.returncode != 0
    assert f"Python takes it from {stranger}" in done.stderr
    assert f"PYTHONPATH={ROOT}" in done.stderr
    assert "a stranger" not in done.stdout  # found, not imported


def test_celery_alone_finds_a_stranger_if_the_root_is_last(site: Site) -> None:
    """The trap, observed: why an editable install must not put the root on sys.path."""
    site.add_stranger("tasks")
    site.put_root_last()
    done = site.celery_report(pythonpath=None)
    assert "a stranger was imported" in done.stdout
    assert OURS not in done.stdout


def test_the_guard_is_content_with_our_own_packages() -> None:
    boot.require_own_packages(ROOT)


def test_the_guard_names_what_is_missing(tmp_path: Path) -> None:
    code = "import pathlib, rejoinder.boot as b; b.require_own_packages(pathlib.Path('/x'))"
    (tmp_path / "rejoinder").symlink_to(ROOT / "rejoinder")
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "is not importable" in done.stderr or "is not Rejoinder's own" in done.stderr
