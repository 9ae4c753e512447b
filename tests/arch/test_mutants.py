"""The list of deliberate faults is alive: each names a line that exists exactly once."""

import pytest

from scripts.mutant_parts.mutant import Mutant
from scripts.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_faults_line_exists_once_and_its_tests_exist(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert all((ROOT / test).exists() for test in mutant.tests)


def test_faults_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
