"""Templates of requests: rendered in a process of their own to the same bytes, and ended at its limits."""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.sandbox.sandbox_process import SandboxProcess
from antiphon.app.sandbox.sandboxed_template import SandboxedTemplate, limit_template_cpu
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.events.inputs import InputMessage
from antiphon.harmony.detection.detect import bytes_format
from antiphon.harmony.format import PromptInput, TemplateOptions
from antiphon.harmony.prompt.templates.jinja import ChatTemplate, RefusedError
from antiphon.harmony.rendered_prompt import RenderError
from tests.clients.second_client import SCRIPT, SecondClient
from tests.harmony import parser_helpers
from tests.harmony.template_models import TEMPLATES_FOLDER
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

pytestmark = pytest.mark.processes

SERVER = partial(
    serve,
    partial(scripted_registry, SCRIPT, delay=0.01),
    trust_request_chat_template=True,
    timeouts=TurnTimeouts(render_cpu_limit_s=0.2),
)
NOW = datetime(2026, 2, 3)  # noqa: DTZ001 - prompts hold a date without a time zone
CONTEXT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a\ud800é\U0001f600", "tool_calls": [("t", 1.5, 2**70, None, True)]}],
    "tools": None,
}
SOURCES = [
    "{{ messages }}",
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls | tojson }}{% endfor %}",
    "{{ '%s %s' % messages[0].tool_calls[0][:2] }}",
    "{{ strftime_now('%Y %B %d') }}",
    "{{ raise_exception('no') }}",
    "{{ messages.nothing.more }}",
    "{{ 1 / 0 }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 99999999 }}",
]


@pytest.fixture(scope="module")
def process() -> Iterator[SandboxProcess]:
    process = SandboxProcess("antiphon.app.sandbox.template_worker")
    yield process
    process.stop()


def outcome(template: ChatTemplate | SandboxedTemplate) -> tuple[Any, ...]:
    try:
        return (template.render(CONTEXT, now=NOW),)
    except RenderError as error:
        return type(error), error.message, error.param


@pytest.mark.parametrize("source", SOURCES)
def test_renders_to_the_same_text_or_error(source: str, process: SandboxProcess) -> None:
    here, there = ChatTemplate(source), SandboxedTemplate(source, process)
    assert outcome(there) == outcome(here)
    assert (there.source, there.variables, there.constants) == (here.source, here.variables, here.constants)


def test_template_that_does_not_compile_has_the_same_error(process: SandboxProcess) -> None:
    for source in ("{% for %}", "{{ a | nothing }}", "{{" + "(" * 3_000):
        with pytest.raises(RenderError) as here:
            ChatTemplate(source)
        with pytest.raises(RenderError) as there:
            SandboxedTemplate(source, process)
        assert str(there.value) == str(here.value) and type(there.value) is type(here.value)


@pytest.mark.parametrize("name", ["qwen3", "mistral-v11", "llama-3.1", "glm-4.5", "deepseek-v3.1"])
def test_whole_prompt_is_the_same(name: str) -> None:
    source = (TEMPLATES_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    prompts = []
    for compile_source in (None, SandboxedTemplate):
        conversation = PromptInput(
            instructions="Be <think>kind</think>.",
            items=(InputMessage(role="user", content="Hi <|im_end|> é\U0001f600"),),
            tools=parser_helpers.TOOLS,
            template=TemplateOptions(source=source, compile_source=compile_source),
        )
        prompts.append(bytes_format("hermes").render_prompt(conversation, now=NOW))
    assert prompts[0] == prompts[1] and "Hi" in prompts[0].text


def test_cpu_time_is_shared_by_all_renderings_of_a_prompt(process: SandboxProcess) -> None:
    template = SandboxedTemplate("{% for a in range(9999) %}{% for b in range(9) %}{% endfor %}{% endfor %}a", process)

    def render_often() -> None:
        for _ in range(1_000):
            template.render({}, now=NOW)

    with limit_template_cpu(0.05), pytest.raises(RenderError, match="limits of time or memory") as caught:
        render_often()
    assert caught.value.param == "chat_template" and not isinstance(caught.value, RefusedError)
    assert SandboxedTemplate("a", process).render({}, now=NOW) == "a"


ATTACKS = {
    "random text": "{{ lipsum(n=1000000000) }}",
    "list of large texts": "{% set ns = namespace(x=[]) %}{% for i in range(400) %}{% set ns.x = ns.x + ['\U0001f600' * 15000000 ~ i] %}{% endfor %}",
    "folded constants": "{{ " + " ~ ".join(["('a' * 15999999)"] * 900) + " }}",
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
}


def test_hostile_template_delays_no_other_client(server: RunningServer) -> None:
    """A template that only the limits of its process can end is among them. Its error is a 400."""
    url = f"{server.url}/chat/completions"
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    with SecondClient(server) as second:
        for name, source in ATTACKS.items():
            reply = httpx.post(url, json={**body, "chat_template": source}, timeout=100)
            assert reply.status_code == 400, (name, reply.text)
            assert reply.json()["error"]["param"] in ("chat_template", "messages"), (name, reply.text)
    assert httpx.post(url, json={**body, "chat_template": "Hi"}, timeout=HANG_TIMEOUT_S).status_code == 200
    print(f"{len(second.health_s)} health checks, slowest {max(second.health_s):.3f} s")
