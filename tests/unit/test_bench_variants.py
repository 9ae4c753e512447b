"""Another commit beside this one in `make bench`: checked out, set up, and removed again."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scripts.bench_parts.telling import beside_itself
from scripts.bench_parts.variants import Variant, checked_out, with_env

if TYPE_CHECKING:
    from pathlib import Path

SETUP = """#!/bin/sh
cd "$(dirname "$0")/.." && mkdir -p .venv/bin && ln -s "$PYTHON" .venv/bin/python
"""
GIT = ["git", "-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]


def commit(root: Path, message: str, lock: str, setup: str = SETUP) -> None:
    (root / "requirements.lock").write_text(lock)
    (root / "pyproject.toml").write_text("")
    (root / "scripts").mkdir(exist_ok=True)
    (root / "scripts" / "setup.sh").write_text(setup)
    (root / "scripts" / "setup.sh").chmod(0o755)
    subprocess.run([*GIT, "add", "-A"], cwd=root, check=True)
    subprocess.run([*GIT, "commit", "--quiet", "-m", message], cwd=root, check=True)


def worktrees(root: Path) -> int:
    told = subprocess.check_output(["git", "worktree", "list"], cwd=root, text=True)
    return len(told.splitlines())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits: one that cannot be set up, one with another lock, and two like the last."""
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    commit(tmp_path, "broken", lock="older", setup="#!/bin/sh\nexit 1\n")
    commit(tmp_path, "old", lock="old")
    commit(tmp_path, "new", lock="new")
    return tmp_path


def test_another_commit_has_its_own_code_and_environment_and_is_gone_afterwards(
    repository: Path,
) -> None:
    with checked_out("HEAD~1", repository) as variant:
        assert variant.label == " @HEAD~1"
        assert (variant.root / "requirements.lock").read_text() == "old"
        assert variant.python == str(variant.root / ".venv" / "bin" / "python")
        said = subprocess.check_output([variant.python, "-c", "print('runs')"], text=True)
        assert said == "runs\n"
        assert variant.env == {"PYTHONPATH": str(variant.root)}
        assert worktrees(repository) == 2
    assert not variant.root.exists()
    assert worktrees(repository) == 1


def test_a_commit_that_needs_the_same_packages_runs_in_our_environment(repository: Path) -> None:
    with checked_out("HEAD", repository) as variant:
        assert variant.python == sys.executable
        assert variant.root != repository


@pytest.mark.parametrize("revision", ["HEAD~2", "no-such-commit"])
def test_a_commit_that_cannot_run_leaves_nothing_behind(repository: Path, revision: str) -> None:
    with pytest.raises(SystemExit, match="see above"), checked_out(revision, repository):
        pytest.fail("it has begun")
    assert worktrees(repository) == 1


def test_an_environment_has_a_name_and_variables() -> None:
    variant = with_env("plain=REJOINDER_FAST=off,REJOINDER_MODEL=a=b")
    assert variant.label == " (plain)"
    assert variant.settings == {"REJOINDER_FAST": "off", "REJOINDER_MODEL": "a=b"}
    assert variant.env == {}


@pytest.mark.parametrize("given", ["plain", "plain=", "=A=b", "plain=A=b,c", "plain=A"])
def test_an_environment_that_says_nothing_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=re.escape(given)):
        with_env(given)


def test_this_commit_is_told_over_others_and_what_is_left_out_over_this_commit(
    tmp_path: Path,
) -> None:
    variants = [Variant(" @old", tmp_path), Variant(" (plain)")]
    figures = {"us": {"gap": 2.0}, "us @old": {"gap": 4.0}, "us (plain)": {"gap": 3.0}}
    told = beside_itself("us", variants, figures, {"gap p50": "gap"}).splitlines()
    assert [line.split() for line in told[3:]] == [
        ["this", "commit", "/", "@old", "0.50"],
        ["(plain)", "/", "without", "1.50"],
    ]
    assert beside_itself("us", [], figures, {"gap p50": "gap"}) == ""
