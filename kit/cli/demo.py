"""`antiphon demo`: one streamed reply of a scripted server, printed as it comes and checked. It needs no torch."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

SCRIPT = """
[[reply]]
name = "hello"
output = [
  "<think>A greeting.</think>", {pause = 0.3}, "Hello", {pause = 0.3}, "!", {pause = 0.3},
  '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>',
]
"""
"""The reply: reasoning, a text and a call, in the Hermes dialect. The pauses, in seconds, make the stream visible."""
REQUEST = {
    "model": "scripted",
    "input": "Say hello, and ask for the weather in Oslo.",
    "tools": [{"type": "function", "name": "get_weather"}],
    "stream": True,
}
STOP_TIMEOUT_S = 10.0


@click.command()
@click.pass_context
def demo(context: click.Context) -> None:
    """Stream one scripted reply and check it.

    A server with scripted replies is started on a free port of this machine; each event is printed when it comes, and
    the stream is checked as `antiphon check` does. The exit status is 0 without findings, 1 with findings.
    """
    from tempfile import TemporaryDirectory  # noqa: PLC0415  the command line starts fast

    from antiphon.kit.conformance.exchanges import check_recorded  # noqa: PLC0415
    from antiphon.kit.conformance.reports import list_finding_lines  # noqa: PLC0415
    from antiphon.kit.terminal_output import print_line  # noqa: PLC0415

    with TemporaryDirectory(prefix="antiphon-") as folder, _run_server(Path(folder)) as base_url:
        print_line(f"POST {base_url}/responses\n")
        body = bytearray()
        for line in _stream_lines(base_url, body):
            print_line(line)
    _, findings = check_recorded(bytes(body), "responses", REQUEST)
    for finding in findings:
        print_line("\n".join(list_finding_lines(finding)))
    print_line(f"\nchecked: {len(findings)} findings")
    context.exit(1 if findings else 0)


@contextmanager
def _run_server(folder: Path) -> Iterator[str]:
    """Runs a scripted server in a process of its own. Yields its base URL."""
    import json  # noqa: PLC0415
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415

    script, log = folder / "demo.toml", []
    script.write_text(SCRIPT, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "antiphon",
        "serve",
        "--engine",
        "scripted",
        "--script",
        str(script),
        "--port",
        "0",
    ]
    command += ["--store", "memory", "--log-format", "json", "--shutdown-timeout", "0"]
    # The settings of a server that the user runs must not change this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    with subprocess.Popen(  # noqa: S603  the command is this program
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                log.append(line)
                if '"event":"ready"' in line.replace(" ", ""):
                    yield json.loads(line)["base_urls"][0]
                    return
            raise click.ClickException("the scripted server did not start:\n" + "".join(log).rstrip())
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _stream_lines(base_url: str, body: bytearray) -> Iterator[str]:
    """Yields a line for each event of the reply, and adds the bytes of the reply to `body`."""
    import httpx2  # noqa: PLC0415

    from antiphon.kit.checker.sse import SseReader  # noqa: PLC0415
    from antiphon.kit.conformance.exchanges import decode_event  # noqa: PLC0415
    from antiphon.kit.findings import FindingList  # noqa: PLC0415
    from antiphon.kit.snapshot.event_lines import format_event  # noqa: PLC0415
    from antiphon.kit.snapshot.id_numbers import IdNumbers  # noqa: PLC0415

    numbers, reader = IdNumbers(), SseReader(FindingList())
    with httpx2.stream("POST", f"{base_url}/responses", json=REQUEST, trust_env=False) as reply:
        for piece in reply.iter_raw():
            body += piece
            for frame in reader.feed(piece):
                if (event := decode_event(frame.data)) is not None:
                    yield format_event(event, numbers)
