"""leadline.toml: what is not understood is refused, naming file, line and key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import cli, config
from leadline.errors import BadLevels, ConfigError
from leadline.records import Level


def test_defaults_and_values() -> None:
    found = config.parse('[tune]\nobjective = "peak"\n[measure]\nconcurrency = [1, 16]\n', "x.toml")
    assert found.tune.objective == "peak"
    assert config.levels(found.measure) == (Level(workload="chat", concurrency=1), Level(workload="chat", concurrency=16))
    assert config.parse("", "x.toml") == config.Settings()


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('[tune]\nobjectiv = "peak"\n', "x.toml:2 [tune]", "'objective'"),
        ('\n\n[tunes]\nobjective = "peak"\n', "x.toml:3", "'tune'"),
        ("[measure]\n\nmax_tokens = 'many'\n", "x.toml:3 [measure]", "int"),
        ("[measure]\nmax_tokens = 0\n", "x.toml:2 [measure]", ">= 1"),
        ('[measure]\ncache = "hot"\n', "x.toml:2 [measure]", "cold, warm, production"),
        ("[measure]\nworkloads = [1]\n", "x.toml:2 [measure]", "str"),
        ("[tune\n", "x.toml", "TOML"),
        ("nonsense = 1\n", "x.toml:1", "target"),
    ],
)
def test_what_is_not_understood_names_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "x.toml")
    assert caught.value.fields["place"].startswith(place)
    assert words in caught.value.message + caught.value.next


def test_an_unknown_cache_state_on_the_command_line_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'hot'.*measure\.cache"):
        cli.settings_from(None, {"measure": {"cache": "hot"}})


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=80))
@settings(deadline=None, max_examples=200)
def test_any_text_is_settings_or_a_config_error(text: str) -> None:
    try:
        found: object = config.parse(text, "x.toml")
    except ConfigError as error:
        found = error
    assert isinstance(found, config.Settings) or (isinstance(found, ConfigError) and found.fields["place"].startswith("x.toml"))


@pytest.mark.parametrize("levels", [(), (0,), (1, -2), (4, 4)])
def test_bad_levels(levels: tuple[int, ...]) -> None:
    with pytest.raises(BadLevels) as caught:
        config.levels(config.Measure(concurrency=levels))
    assert "1" in caught.value.next
