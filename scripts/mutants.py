"""make mutants: break the code on purpose, one line at a time, and see that some test fails.

Each mutant is applied to a copy of the sources; the tests named with it run against that copy. A
mutant that survives, or whose line is no longer there, fails the command. ARGS=NAME runs one.
`tests/arch` checks that every line still exists, so that the list cannot rot.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.mutant_parts.mutant import MATRIX, Mutant
from scripts.mutant_parts.of_machine import OF_MACHINE
from scripts.mutant_parts.of_steps import OF_STEPS
from scripts.mutant_parts.of_tasks import OF_TASKS
from scripts.mutant_parts.of_workers import OF_WORKERS

ROOT = Path(__file__).parent.parent
COPIED = ("models", "rejoinder", "tasks", "tests", "scripts", "celeryconfig.py", "pyproject.toml")
AS_IT_IS = (
    MATRIX,
    *(f"tests/integration/test_{n}.py" for n in ("calls", "turns", "sending", "trees", "races")),
)
AT_ONCE = 2
TIMEOUT_SECONDS = 600

MUTANTS: tuple[Mutant, ...] = (*OF_MACHINE, *OF_STEPS, *OF_TASKS, *OF_WORKERS)


def apply(mutant: Mutant, root: Path) -> None:
    """Write the fault into a copy of the sources."""
    path = root / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        found = source.count(mutant.old)
        raise LookupError(f"{mutant.name}: its line is in {mutant.file} {found} times")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")


def survives(mutant: Mutant | None) -> bool:
    """Whether the tests pass although the code is broken (or, for None, as it is)."""
    with tempfile.TemporaryDirectory(prefix="rejoinder-mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        tests = AS_IT_IS
        only: tuple[str, ...] = ()
        if mutant is not None:
            apply(mutant, copy)
            tests = mutant.tests
            only = ("-k", mutant.only) if mutant.only else ()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, *only],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    if done.returncode not in (0, 1):  # neither passed nor failed: it did not run
        raise RuntimeError(done.stdout.decode() + done.stderr.decode())
    return done.returncode == 0


def main(names: list[str]) -> int:
    """Try the mutants, print a line for each."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if not chosen:
        print(f"no such mutant; there are: {', '.join(mutant.name for mutant in MUTANTS)}")
        return 2
    if not names and not survives(None):
        print("the tests fail without any fault; mend that first")
        return 1
    alive = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, survived in zip(chosen, pool.map(survives, chosen), strict=True):
            alive += survived
            print(f"{'SURVIVED' if survived else 'caught':9} {mutant.name}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} faults noticed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
