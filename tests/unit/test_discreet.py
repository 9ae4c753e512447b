"""What people see of a task's arguments: ids, never content."""

import pytest

from rejoinder.discreet import shown


def test_ids_are_shown_and_content_is_not() -> None:
    said = shown({"chat_id": "c-1", "content": "my secret", "queued_id": 7, "when_busy": "queue"})
    assert "c-1" in said
    assert "7" in said
    assert "secret" not in said


@pytest.mark.parametrize("value", ["x" * 65, {"a": "secret"}, ["secret"], 1.5])
def test_what_is_no_id_is_hidden_even_under_an_ids_name(value: object) -> None:
    assert shown({"chat_id": value}) == "{'chat_id': '…'}"


@pytest.mark.parametrize("kwargs", [None, ["secret"], "secret", 7])
def test_what_is_no_mapping_is_hidden(kwargs: object) -> None:
    assert shown(kwargs) == "…"
