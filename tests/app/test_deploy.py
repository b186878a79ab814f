"""The configuration file, unit, Containerfile and command lines of `docs/deploy.md` fit the program."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import httpx
import kubernetes_validate
import pytest
import yaml

from antiphon.app.cli import commands as cli
from antiphon.app.cli.config_file import SECRETS, load_config_file
from tests.app.deployment_files import parse_serve
from tests.conftest import StartServer
from tests.syntax import PACKAGES, ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
HADOLINT, SYSTEMD_ANALYZE = shutil.which("hadolint"), shutil.which("systemd-analyze")


def read_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def read_unit() -> ConfigParser:
    (text,) = [block for block in read_blocks("ini") if "[Service]" in block]
    unit = ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # keys keep their case
    unit.read_string(text)
    return unit


def read_instructions() -> list[tuple[str, str]]:
    """Returns the instructions of the Containerfile with their arguments, comments left out."""
    text = "\n".join(line for line in CONTAINERFILE.splitlines() if not line.lstrip().startswith("#"))
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines)]


def find_instruction(name: str) -> str:
    return [arguments for found, arguments in read_instructions() if found == name][-1]


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    (text,) = read_blocks("toml")
    file = tmp_path / "serve.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_configuration_file_sets_every_key(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tomllib.loads(config_file.read_text(encoding="utf-8"))
    assert {key for key, _ in load_config_file(config_file, cli.serve).values()} == written.keys()
    values = parse_serve(["serve", "--config", str(config_file)], {}, monkeypatch)
    assert (values["model"], values["allowed_hosts"]) == (("Qwen/Qwen3-0.6B",), ("llm.example",))


def test_unit_starts_the_server(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = read_unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/antiphon/bin/antiphon"
    assert service["LoadCredential"].split(":")[0] == "api-keys"
    words = [word.replace("/etc/antiphon/serve.toml", str(config_file)).replace("%d", "/run/c") for word in words]
    variables = dict(re.findall(r"(ANTIPHON_\w+)=(\S+)", "\n".join(read_blocks("ini"))))
    values = parse_serve(words, variables, monkeypatch)
    assert values["api_key_file"] == Path("/run/c/api-keys") and values["log_format"] == "json"
    assert values["store"] == f"/var/lib/{service['StateDirectory']}/responses.db"
    assert float(service["TimeoutStopSec"]) > values["shutdown_timeout"] + 3
    assert (service["RestartPreventExitStatus"], service["Restart"]) == ("2", "on-failure")


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("antiphon"))
    file = tmp_path / "antiphon.service"
    file.write_text(read_blocks("ini")[0].replace("/opt/antiphon/bin/antiphon", program), encoding="utf-8")
    verify = subprocess.run(
        [str(SYSTEMD_ANALYZE), "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in verify.stderr.splitlines() if "antiphon.service" in line]
    assert not complaints, complaints
    security = [str(SYSTEMD_ANALYZE), "security", "--offline=true", "--threshold=20", str(file)]
    run = subprocess.run(security, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-300:]


def test_image_runs_the_server_without_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = dict(word.partition("=")[::2] for word in find_instruction("ENV").split())
    words = [*json.loads(find_instruction("ENTRYPOINT")), *json.loads(find_instruction("CMD"))]
    assert words[0] == "antiphon" and int(find_instruction("USER")) >= 1000
    values = parse_serve(words[1:], {name: text for name, text in variables.items() if "ANTIPHON" in name}, monkeypatch)
    (volume,) = json.loads(find_instruction("VOLUME"))
    assert (values["host"], str(values["port"])) == ("0.0.0.0", find_instruction("EXPOSE"))
    for path in (values["store"], variables["XDG_CACHE_HOME"], variables["HF_HOME"]):
        assert Path(path).is_relative_to(volume)


def test_image_is_built_from_all_packages() -> None:
    copied = [word for name, rest in read_instructions() if name == "COPY" for word in rest.split()[:-1]]
    sources = {word for word in copied if not word.startswith(("/", "--"))}
    assert sources == {"pyproject.toml", "requirements.lock", "README.md", "LICENSE", *PACKAGES}
    stages: list[str] = []
    for base, _, stage in (rest.partition(" AS ") for name, rest in read_instructions() if name == "FROM"):
        version = re.fullmatch(r"docker\.io/library/python:3\.(\d+)-slim", base)
        assert base in stages or (version is not None and int(version[1]) >= 11)
        stages.append(stage)
    assert stages[-2:] == ["light", "cpu"], "the last one is built without --target"
    extras = re.findall(r"pip install [^\n]*'\.\[([\w,]+)\]'", CONTAINERFILE.replace("\\\n", ""))
    assert [("torch" in each.split(",")) for each in extras] == [False, True]


def read_manifests(name: str) -> dict[str, dict[str, Any]]:
    """Returns the objects of a file by their kinds."""
    objects = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / name).read_text(encoding="utf-8")))
    assert len({each["kind"] for each in objects}) == len(objects)
    return {each["kind"]: each for each in objects}


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", ["single.yaml", "cluster.yaml"])
def test_manifests_fit_the_schemas_of_kubernetes(name: str, version: str) -> None:
    """Unknown fields are faults, too."""
    for manifest in read_manifests(name).values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_field_that_kubernetes_does_not_know_is_found() -> None:
    manifest = read_manifests("single.yaml")["Deployment"]
    manifest["spec"]["template"]["spec"]["containers"][0]["readinessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinessProb"):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", ["single.yaml", "cluster.yaml"])
def test_manifests_fit_the_server(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = read_manifests(name)
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    config = tmp_path / "serve.toml"
    config.write_text(manifests["ConfigMap"]["data"]["serve.toml"], encoding="utf-8")
    words = [str(config) if word == "/etc/antiphon/serve.toml" else word for word in container["args"]]
    values = parse_serve(words, {}, monkeypatch)
    [port] = container["ports"]
    assert port["containerPort"] == values["port"] == int(find_instruction("EXPOSE"))
    assert pod["terminationGracePeriodSeconds"] >= values["drain_delay"] + values["shutdown_timeout"] + 15
    assert not pod["enableServiceLinks"] and pod["securityContext"]["runAsUser"] == int(find_instruction("USER"))
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]} and "/data" in mounts
    for field in ("api_key_file", "encryption_key_file"):
        assert values[field] is None or str(values[field].parent) in mounts
    for probe, path in (("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert manifests["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests["Service"]["spec"]["selector"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)


def test_health_check_of_the_image_follows_the_server(start_server: StartServer) -> None:
    server = start_server([{"name": "hello", "output": ["Hello."]}], host="0.0.0.0")
    _, _, command = find_instruction("HEALTHCHECK").partition("CMD ")
    words = [sys.executable, *json.loads(command)[1:]]
    assert "127.0.0.1:8000/health" in words[-1]
    words[-1] = words[-1].replace(":8000", f":{server.port}")
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert httpx.get(f"{server.root}/health").status_code == 200
    words[-1] = words[-1].replace("/health", "/nothing")
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_containerfile_has_no_lint() -> None:
    run = subprocess.run([str(HADOLINT), str(ROOT / "Containerfile")], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_command_lines_on_the_page_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for block in read_blocks("sh") for line in block.splitlines() if "antiphon serve" in line]
    assert len(lines) >= 3
    for line in lines:
        words = shlex.split(line)
        start = max(number for number, word in enumerate(words) if word == "serve")
        assert parse_serve(words[start:], {}, monkeypatch)


def test_rows_of_the_table_of_sources_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = re.findall(r"^\| `(--[^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    file = tmp_path / "serve.toml"
    for arguments, variable, key in rows:
        file.write_text(key, encoding="utf-8")
        name, _, value = variable.partition("=")
        expected = parse_serve(["serve", *shlex.split(arguments)], {}, monkeypatch)
        assert expected != parse_serve(["serve"], {}, monkeypatch)
        assert parse_serve(["serve"], {name: value.strip('"')}, monkeypatch) == expected
        assert parse_serve(["serve", "--config", str(file)], {}, monkeypatch) == expected


def test_page_names_the_secrets_that_a_file_must_not_contain() -> None:
    for key in SECRETS:
        option = next(each for each in cli.serve.params if f"--{key}" in each.opts)
        assert isinstance(option, click.Option) and f"`{option.envvar}`" in PAGE
