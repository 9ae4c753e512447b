"""The boot guard: `tasks` and `models` must be this project's own packages.

PyPI has packages of both names. With one installed, `import models` may find the stranger, and what
follows is a puzzle. The guard looks where Python would import each name from, without importing it,
and refuses with what to do. It never changes `sys.path`. Rule: the project root comes first on
PYTHONPATH (the Makefile sees to it).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

OWN_PACKAGES = ("tasks", "models")


class ForeignPackageError(ImportError):
    """One of our package names is somebody else's; the message names the path and the cure."""


def require_own_packages(root: Path) -> None:
    """Raise unless `tasks` and `models` both come from the folder `root`."""
    root = root.resolve()
    for name in OWN_PACKAGES:
        found = _location(name)
        if found != root / name:
            raise ForeignPackageError(_refusal(name, found, root), name=name)


def _location(name: str) -> Path | None:
    """The folder (or single file) that `import name` takes, or has taken, the package from."""
    loaded = sys.modules.get(name)
    spec = loaded.__spec__ if loaded is not None else find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


def _refusal(name: str, found: Path | None, root: Path) -> str:
    cure = f"Run from {root} with PYTHONPATH={root}"
    if found is None:
        return f"Rejoinder's package {name!r} is not importable. {cure}."
    return (
        f"{name!r} is not Rejoinder's own package: Python takes it from {found}, "
        f"expected {root / name}. {cure}, or uninstall the package that brought the other {name!r}."
    )
