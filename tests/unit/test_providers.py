"""Which provider runs which model."""

from __future__ import annotations

import pytest

from rejoinder import providers
from rejoinder.core.errors import Rejected
from rejoinder.providers import PROVIDERS, forget_all, provider_for, register
from rejoinder.providers.anthropic import AnthropicProvider


def test_a_provider_is_made_once_and_knows_its_models() -> None:
    provider, model = provider_for("anthropic:claude-sonnet-5")
    assert (provider.name, model) == ("anthropic", "claude-sonnet-5")
    assert provider_for("anthropic:other")[0] is provider
    assert provider.profile(model).caching


def test_a_models_own_name_may_hold_colons() -> None:
    assert provider_for("anthropic:claude-v1:0")[1] == "claude-v1:0"


@pytest.mark.parametrize(
    "model", ["", "claude-sonnet-5", "anthropic:", "anthropic: ", ":x", "no:x"]
)
def test_what_names_no_model_is_refused_with_advice(model: str) -> None:
    with pytest.raises(Rejected) as refused:
        provider_for(model)
    assert refused.value.advice


def test_a_registered_provider_takes_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "PROVIDERS", {**PROVIDERS})
    made = AnthropicProvider(api_key="none")
    register("mine", lambda: made)
    assert provider_for("mine:x")[0] is made


def test_a_forked_child_begins_with_no_connections() -> None:
    before = provider_for("anthropic:x")[0]
    forget_all()
    assert provider_for("anthropic:x")[0] is not before
