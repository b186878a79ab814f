"""Options for adapters are checked before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from antiphon.app.adapters.registration import check_adapter_options, describe_adapter
from antiphon.app.cli.commands import main
from antiphon.app.options.api_keys import plain_key
from antiphon.app.options.serve_options import ServeError, ServeOptions, check_lora_updates
from antiphon.app.options.settings import Settings
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions, LoraModule
from tests.serving import scripted_registry


@pytest.mark.parametrize("engine", ["scripted", "vllm", "sglang", "llama.cpp", "trtllm", "remote"])
@pytest.mark.parametrize(
    ("option", "values"),
    [("--lora", {"lora_modules": (LoraModule("a", "/a"),)}), ("--allow-lora-updates", {"allow_lora_updates": True})],
)
def test_only_the_engine_that_runs_a_model_has_adapters(engine: Any, option: str, values: dict[str, Any]) -> None:
    with pytest.raises(ServeError, match=f"{option} requires --engine torch"):
        check_adapter_options(ServeOptions(engine=engine, engine_options=EngineOptions(**values)))


def test_a_folder_without_an_adapter_is_refused_at_once(tmp_path: Path) -> None:
    options = EngineOptions(lora_modules=(LoraModule("a", str(tmp_path)),))
    with pytest.raises(LoadError, match=r"holds no adapter_config\.json"):
        check_adapter_options(ServeOptions(engine_options=options))
    (tmp_path / "adapter_config.json").write_text('{"use_dora": true}')
    with pytest.raises(LoadError, match="use_dora = true"):
        check_adapter_options(ServeOptions(engine_options=options))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"holds no adapter_model\.safetensors"):
        check_adapter_options(ServeOptions(engine_options=options))


def test_updates_without_a_key_are_refused() -> None:
    settings = Settings(allow_lora_updates=True, lora_dirs=("/",))
    with pytest.raises(ServeError, match="set an API key"):
        check_lora_updates(settings, insecure=False)
    check_lora_updates(settings, insecure=True)
    with_key = Settings(allow_lora_updates=True, lora_dirs=("/",), fixed_keys=(plain_key(b"x"),))
    check_lora_updates(with_key, insecure=False)
    check_lora_updates(Settings(), insecure=False)


def test_updates_and_their_folders_are_given_together() -> None:
    with pytest.raises(ServeError, match="requires --lora-dir"):
        check_lora_updates(Settings(allow_lora_updates=True), insecure=True)
    with pytest.raises(ServeError, match="add --allow-lora-updates"):
        check_lora_updates(Settings(lora_dirs=("/",)), insecure=True)
    with pytest.raises(ServeError, match="--lora-dir /nowhere: there is no such folder"):
        check_lora_updates(Settings(allow_lora_updates=True, lora_dirs=("/", "/nowhere")), insecure=True)


def test_an_option_without_a_path_is_refused() -> None:
    result = CliRunner().invoke(main, ["serve", "--lora", "sql"])
    assert result.exit_code == 2
    assert "write NAME=PATH" in result.output


def test_names_of_adapters_are_names_of_models() -> None:
    registry = scripted_registry([{"name": "hi", "output": ["hi"]}])
    for _ in range(2):
        registry.add_adapter(describe_adapter(registry.served[0], "sql", "/a"))
        assert registry.find_model("sql").names == ("sql",)
        assert [model.names for model in registry.all_models] == [("scripted",)]
        with pytest.raises(ValueError, match="duplicate model name 'sql'"):
            registry.add_adapter(describe_adapter(registry.served[0], "sql", "/a"))
        with pytest.raises(ValueError, match="duplicate model name 'scripted'"):
            registry.add_adapter(describe_adapter(registry.served[0], "scripted", "/a"))
        registry.remove_adapter("sql")
        registry.remove_adapter("scripted")
        assert registry.get_model("sql") is None
        assert registry.get_model("scripted") is not None
