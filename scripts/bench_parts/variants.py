"""Rejoinder beside itself: another commit of it, or this one with another environment.

A commit gets a git worktree in a temporary folder, and the virtual environment that its own
`scripts/setup.sh` makes (ours, if it would be the same); both are gone afterwards. Its workers and
migrations are its own code. What drives and measures them is of this commit, so it has to
understand the same task names, settings and events.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.fleet import ROOT

_MIGRATE = """
import sys
try:
    from models.migrate import upgrade
except ImportError:
    from rejoinder.models.migrate import upgrade
upgrade(sys.argv[1])
"""
_SAME = ("requirements.lock", "pyproject.toml")
"""What an environment is made from."""


@dataclass(frozen=True)
class Variant:
    """What a contender's workers run, and with which settings; by default, this checkout."""

    label: str = ""
    """What tells it from others, after the contender's name."""
    root: Path = ROOT
    python: str = sys.executable
    template: str = "bench_template"
    """A database with its schema, and no rows."""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """What its processes get, more than all others: their own code, and none of ours."""
        return {} if self.root == ROOT else {"PYTHONPATH": str(self.root)}

    def migrate(self, url: str) -> None:
        """Give a database its schema."""
        subprocess.run(
            [self.python, "-c", _MIGRATE, url],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            check=True,
        )


def with_env(given: str) -> Variant:
    """This checkout with another environment; `NAME=VARIABLE=VALUE,…`."""
    name, _, rest = given.partition("=")
    settings = dict(each.split("=", 1) for each in rest.split(",") if "=" in each)
    if not name or len(settings) != rest.count(",") + 1:
        raise ValueError(given)
    return Variant(f" ({name})", settings=settings)


@contextmanager
def checked_out(revision: str, root: Path = ROOT) -> Iterator[Variant]:
    """Another commit of the repository at `root`, with an environment of its own."""
    commit = _git(root, "rev-parse", "--verify", f"{revision}^{{commit}}")
    _git(root, "worktree", "prune")  # what a killed run left behind
    with tempfile.TemporaryDirectory(prefix="rejoinder-against-") as folder:
        tree = Path(folder).resolve() / "checkout"
        _git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            python = _environment(tree, root)
            yield Variant(f" @{revision}", tree, python, f"bench_template_{commit[:12]}")
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _environment(tree: Path, root: Path) -> str:
    """The Python to run it with: ours, if its own would be the same."""
    if all((tree / name).read_bytes() == (root / name).read_bytes() for name in _SAME):
        return sys.executable
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ours = str(Path(sys.executable).resolve())
    made = subprocess.run(
        [tree / "scripts" / "setup.sh"], env={**inherited, "PYTHON": ours}, check=False
    )
    if made.returncode:
        raise SystemExit(f"the environment of {tree} could not be made (see above)")
    return str(tree / ".venv" / "bin" / "python")


def _git(root: Path, *arguments: str) -> str:
    asked = subprocess.run(
        ["git", "-C", root, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if asked.returncode:
        raise SystemExit(f"`git {' '.join(arguments)}` failed in {root} (see above)")
    return asked.stdout.strip()
