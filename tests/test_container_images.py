"""The images of the Containerfile are built and serve: `light` a script, `cpu` the embedded model.

It needs podman or docker, and the base image. `ANTIPHON_IMAGE_BUILD_FLAGS` has more flags for `build`, such as a
mirror of the package index, and `ANTIPHON_IMAGE_RUN_FLAGS` for `run`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.app.server_helpers import free_port
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

BUILDER = shutil.which("podman") or shutil.which("docker")
BUILD_FLAGS = shlex.split(os.environ.get("ANTIPHON_IMAGE_BUILD_FLAGS", ""))
RUN_FLAGS = shlex.split(os.environ.get("ANTIPHON_IMAGE_RUN_FLAGS", ""))
MAX_LIGHT_BYTES = 175_000_000
"""Unpacked size of what the image without torch adds to its base, which has about 125 MB: 300 MB together."""
SCRIPT = '[[reply]]\nname = "hello"\noutput = ["Hello, from an image."]\n'

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(BUILDER is None, reason="no builder of images (podman, docker) is installed"),
    pytest.mark.timeout(3600),
]


def run_builder(*args: str) -> str:
    run = subprocess.run([str(BUILDER), *args], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return run.stdout


@pytest.fixture(scope="module")
def base_image() -> str:
    """Returns the name of the base image, which is on this machine now."""
    (base,) = set(re.findall(r"^FROM (\S+/\S+)", (ROOT / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE))
    for command in (["image", "inspect", base], ["pull", base]):
        if subprocess.run([str(BUILDER), *command], capture_output=True, check=False).returncode == 0:
            return base
    pytest.skip("the base image cannot be pulled")


@contextmanager
def serve_image(target: str, folder: Path, *args: str) -> Iterator[str]:
    """Builds an image and serves from it, with a root file system that nothing can write to. Yields the URL."""
    tag, name, port = f"antiphon-test:{target}", f"antiphon-{uuid.uuid4().hex[:8]}", free_port()
    run_builder("build", "--file", "Containerfile", *BUILD_FLAGS, "--target", target, "--tag", tag, str(ROOT))
    flags = ("--read-only", "--tmpfs", "/tmp", "--network", "host", "--volume", f"{folder}:/script:ro", *RUN_FLAGS)
    command = [str(BUILDER), "run", "--rm", "--name", name, *flags, tag, "serve", "--host", "127.0.0.1"]
    with subprocess.Popen([*command, "--port", str(port), *args], stdout=subprocess.PIPE, text=True) as process:
        url = f"http://127.0.0.1:{port}"

        def is_ready() -> bool:
            assert process.poll() is None, "the container has exited"
            try:
                return httpx.get(f"{url}/ready").status_code == 200
            except httpx.TransportError:
                return False

        try:
            wait_with_progress(is_ready, f"the image {target} did not serve")
            yield url
        finally:
            run_builder("stop", "--time", "20", name)
            assert process.wait(HANG_TIMEOUT_S) == 0, "SIGTERM ends the server in time"


def create_text(url: str, model: str) -> str:
    reply = httpx.post(f"{url}/v1/responses", json={"model": model, "input": "Hello!"})
    assert reply.status_code == 200, reply.text
    return "".join(part["text"] for item in reply.json()["output"][-1:] for part in item["content"])


def measure_added_bytes(target: str, base_image: str) -> int:
    """Returns the unpacked size of an image without that of its base."""
    image, base = json.loads(run_builder("image", "inspect", f"antiphon-test:{target}", base_image))
    assert image["Config"]["User"] == "10001"
    added: int = image["Size"] - base["Size"]
    print(f"{target}: {added / 1e6:.0f} MB on {base['Size'] / 1e6:.0f} MB of {base_image}")
    return added


def test_light_image_serves_a_script(base_image: str, tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT, encoding="utf-8")
    tmp_path.chmod(0o755)
    with serve_image("light", tmp_path, "--engine", "scripted", "--script", "/script/script.toml") as url:
        assert create_text(url, "scripted") == "Hello, from an image."
    assert measure_added_bytes("light", base_image) <= MAX_LIGHT_BYTES


def test_cpu_image_serves_the_embedded_model(base_image: str, tmp_path: Path) -> None:
    with serve_image("cpu", tmp_path) as url:
        assert create_text(url, "antiphon")
    assert measure_added_bytes("cpu", base_image)
