"""Which tests run in the same process, and in which order.

Tests of the scenarios that share a fleet, which takes seconds to start, stay together, and the
largest such groups begin first: what is left for the end is small. The groups come from the tests'
names, because the marker `xdist_group` does nothing with every version of pytest.
"""

from xdist.scheduler import LoadScopeScheduling

POOLS = ("threads", "prefork")
TOGETHER = {"scenarios", "test_isolation.py"}
"""Folders and files whose tests have something to do with each other."""


class Stages(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands out scenarios by the fleet that they play on, and most other tests one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return stage_of(nodeid)


def stage_of(nodeid: str) -> str:
    """The name of a test's group: its file and its pool, or for most the test itself."""
    path, _, name = nodeid.partition("::")
    if TOGETHER.isdisjoint(path.split("/")):
        return nodeid
    pool = next((pool for pool in POOLS if pool in name), "")
    return f"{path} {pool}"
