"""Documentation that comes from the code is fresh, and what it links to exists."""

import re
from pathlib import Path

import pytest

from scripts import docs

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("name", docs.FILES)
def test_generated_parts_are_fresh(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert docs.render(text) == text, "run `make docs`"
    assert "<!-- generated:" in text


def test_a_stale_part_is_noticed() -> None:
    stale = "<!-- generated: settings -->\nold\n<!-- end -->"
    assert "REJOINDER_DATABASE_URL" in docs.render(stale)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
