"""Settings come from the environment, and nonsense is refused with the variable's name."""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, fields

import pytest

from rejoinder.core.errors import Rejected
from rejoinder.core.settings import Settings, variable


def test_nothing_set_means_the_defaults() -> None:
    assert Settings.load({}) == Settings()
    assert Settings.load({"REJOINDER_HEARTBEAT_SECONDS": " "}) == Settings()
    assert Settings().heartbeat_seconds == 5
    assert Settings().dead_after_seconds == 15


@pytest.mark.parametrize("each", fields(Settings), ids=lambda each: each.name)
def test_every_setting_is_read_from_its_variable(each: Field[object]) -> None:
    text = {str: "a://b", bool: "off"}.get(type(each.default), "7")
    environ = {"REJOINDER_DEAD_AFTER_SECONDS": "600", variable(each.name): text}
    if each.name == "dead_after_seconds":
        environ["REJOINDER_HEARTBEAT_SECONDS"] = "1"
    loaded = getattr(Settings.load(environ), each.name)
    assert str(loaded) in (text, "7.0") or loaded is False
    assert type(loaded) is type(each.default)
    assert each.metadata["says"]


def test_variables_of_others_are_left_alone() -> None:
    assert Settings.load({"DATABASE_URL": "x", "heartbeat_seconds": "1"}) == Settings()


def test_spaces_around_a_value_do_not_count() -> None:
    assert Settings.load({"REJOINDER_REDIS_URL": " redis://h \n"}).redis_url == "redis://h"


NUMBERS = [
    variable(each.name) for each in fields(Settings) if not isinstance(each.default, str | bool)
]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "soon", "5s", "1e999"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_none_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(Rejected, match=f"{name} is .*give a .*number.* above 0"):
        Settings.load({name: value})


def test_a_switch_is_on_or_off() -> None:
    assert Settings().fast
    assert Settings.load({"REJOINDER_FAST": "on"}).fast
    assert not Settings.load({"REJOINDER_FAST": "off"}).fast
    with pytest.raises(Rejected, match=r"REJOINDER_FAST is 'no'.*give `on` or `off`"):
        Settings.load({"REJOINDER_FAST": "no"})


def test_a_worker_is_given_two_heartbeats_before_it_is_dead() -> None:
    with pytest.raises(Rejected, match="REJOINDER_DEAD_AFTER_SECONDS is less than two heartbeats"):
        Settings.load({"REJOINDER_HEARTBEAT_SECONDS": "8"})
    assert Settings.load({"REJOINDER_HEARTBEAT_SECONDS": "7.5"}).heartbeat_seconds == 7.5


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().redis_url = "x"  # type: ignore[misc]


def test_a_share_of_the_context_is_a_percentage() -> None:
    assert Settings.load({"REJOINDER_COMPACT_AT": "100"}).compact_at == 100
    with pytest.raises(Rejected, match=r"REJOINDER_COMPACT_AT is 101.*percentage"):
        Settings.load({"REJOINDER_COMPACT_AT": "101"})
