"""The peers of `make bench` cost nobody anything who did not ask for them."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

from scripts.bench_parts import peers
from tests.owners import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Of ours, what LangGraph depends on wants an older one: see `make lock`.
APART = {"uuid-utils"}


def pinned(lock: str) -> dict[str, str]:
    """The versions in a lock file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def asked_for(group: str) -> set[str]:
    """The packages of a dependency group."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return {re.split(r"[^\w-]", line)[0] for line in groups[group]}


def test_peers_are_pinned_and_only_in_a_lock_file_of_their_own() -> None:
    assert asked_for("peers") <= set(pinned("requirements-peers.lock"))
    assert asked_for("peers") & set(pinned("requirements.lock")) == {"anthropic"}


def test_peers_ask_the_model_with_what_we_ask_it_with() -> None:
    ours, theirs = pinned("requirements.lock"), pinned("requirements-peers.lock")
    shared = set(ours) & set(theirs) - APART
    assert {"anthropic", "httpx2", "pydantic"} <= shared
    assert {name: theirs[name] for name in shared} == {name: ours[name] for name in shared}


def test_without_their_environment_there_are_no_peers(tmp_path: Path) -> None:
    python = tmp_path / "python"
    assert peers.installed(python) == {}
    python.touch()
    assert list(peers.installed(python)) == list(peers.PEERS)


def test_every_peer_has_a_program() -> None:
    contenders = ROOT / "scripts" / "bench_parts" / "contenders"
    assert [m for m, *_ in peers.PEERS.values() if not (contenders / f"{m}.py").exists()] == []
