"""Settings that the operator chooses at start. In this package, only the command line reads the environment.

Some modules outside it read others: `harmony/gptoss/format.py` reads `TIKTOKEN_ENCODINGS_BASE`, and unsets it while the
vocabulary is loaded if that folder does not contain it; `engine/kernels/compiler.py` reads `XDG_CACHE_HOME` (where
compiled kernels are stored) and `CC`. `app/tools/hosted_options.py` reads the variables that
`--tool-server-key` names, and `app/tracing/options.py` the standard ones of OpenTelemetry. The engine's
worker process inherits the environment without its secrets.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from antiphon.app.options.api_keys import ApiKey
from antiphon.engine.options import Option

ReasoningOutput = Literal["content", "summary", "both"]
FileMark = tuple[int, int, int] | None
"""Inode, size in bytes and time of the last change in ns of a file; None if it cannot be found."""
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound here
_server, _keys = partial(Option, "Server"), partial(Option, "Keys and TLS")
_replies, _storage = partial(Option, "Replies"), partial(Option, "Storage")
_tools, _traces = partial(Option, "Tools"), partial(Option, "Traces")
_images = partial(Option, "Images and files")


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a server, fixed while it runs. Sizes are in bytes, times in seconds, unless the name has a unit."""

    host: Annotated[str, _server("Address to bind.")] = "127.0.0.1"
    port: Annotated[int, _server("Port; 0: any free port.", minimum=0, maximum=65535)] = 8000
    grpc_port: Annotated[
        int | None, _server("Port for gRPC; 0 picks a free port.", name="grpc", minimum=0, maximum=65535)
    ] = None
    """Each further model has the next port. None: gRPC is not served."""
    allowed_hosts: Annotated[tuple[str, ...], _server("Additional allowed Host header; repeatable.")] = ()
    """Host names that clients may use in addition to loopback names and `host`."""
    allowed_origins: Annotated[
        tuple[str, ...],
        _server(
            "Origin of web pages that may use the server from a browser, such as https://app.example, or * for every "
            "page; repeatable.",
            syntax="origin",
        ),
    ] = ()
    enable_websocket: Annotated[bool, _server("Serve WebSockets on /v1/responses.", name="websocket")] = True
    enable_batches: Annotated[bool, _server("Run batches: /v1/batches.", name="batches")] = True
    inspect: Annotated[
        Literal["off", "memory", "store"] | None,
        _server(
            'Place of the turns that the page and /v1/inspect show; store: those with "store": false stay in memory; '
            "default: memory if only this machine reaches the server and no API key is required, else off."
        ),
    ] = None
    """See `inspect_mode`."""
    inspect_mib: Annotated[int, _server("Memory for the records of turns, in MiB.", minimum=1)] = 64
    enable_page: Annotated[bool, _server("Serve the web page on /ui/.", name="ui")] = True
    otlp_endpoint: Annotated[
        str | None,
        _traces(
            "Collector to which traces are sent by OTLP over HTTP, such as http://127.0.0.1:4318. Default: as "
            "OTEL_EXPORTER_OTLP_ENDPOINT says, else no traces."
        ),
    ] = None
    otlp_content: Annotated[
        Literal["off", "span", "event"],
        _traces("Prompts and outputs in traces: none, as attributes of spans, or as an event of a span."),
    ] = "off"
    otlp_content_of: Annotated[
        str | None, _traces("Owner whose prompts and outputs --otlp-content sends. Default: the only one.")
    ] = None
    shutdown_timeout: Annotated[float, _server("Seconds to let running responses finish on shutdown.", minimum=0)] = 5.0
    """Time from the first SIGTERM until streams that are still open are ended."""
    disconnect_grace: Annotated[
        float, _server("Seconds for which a stored stream runs on without its client, to be read on.", minimum=0)
    ] = 15.0
    drain_delay: Annotated[
        float,
        _server("Seconds after SIGTERM in which /ready says 503 and connections are still accepted.", minimum=0),
    ] = 0.0
    """Load balancers need a while to see that a server ends."""
    reuse_port: Annotated[bool, _server("Let other processes of this user listen on the same port, too.")] = False
    continue_within: Annotated[
        float,
        _server(
            "Seconds for which a response waits for an engine that is lost, and then continues; 0: it fails.", minimum=0
        ),
    ] = 60.0
    """Also the time for which a stored response is left to other servers after its own has died."""
    fixed_keys: tuple[ApiKey, ...] = ()
    """API keys of the command line or the environment."""
    file_keys: tuple[ApiKey, ...] = ()
    """API keys that `key_file` has at the start."""
    key_file: Path | None = None
    file_marks: Mapping[Path, FileMark] | None = None
    """Files that a reload reads again, as they were before the start read them."""
    on_revoke: Annotated[
        Literal["finish", "cancel"],
        _keys("Running responses of an API key that is taken out of the key file: they finish, or are cancelled."),
    ] = "finish"
    ssl_certfile: Annotated[
        Path | None,
        _keys(
            "Certificate in PEM format, followed by those of its issuers: serve HTTPS instead of HTTP.", syntax="file"
        ),
    ] = None
    ssl_keyfile: Annotated[
        Path | None,
        _keys("Private key of the certificate in PEM format. Default: in the file of the certificate.", syntax="file"),
    ] = None
    ssl_keyfile_password: Annotated[
        str | None,
        _keys(
            "Password of an encrypted private key. Other users of the machine can see it in the process list: use "
            "the variable."
        ),
    ] = None
    reasoning_output: Annotated[ReasoningOutput, _replies("Where reasoning appears. Codex shows summaries only.")] = (
        "content"
    )
    apply_patch_diffs: Annotated[
        bool, _replies("Stream the diffs of apply_patch calls. The openai library for Node cannot read these events.")
    ] = False
    """OpenAI's API sends them, but no type of its libraries knows them."""
    default_max_output_tokens: Annotated[
        int | None,
        _replies(
            "Output limit of requests that set none. Default: the rest of the context.",
            name="max-output-tokens",
            minimum=1,
        ),
    ] = None
    unsupported_media: Annotated[
        Literal["placeholder", "refuse"],
        _replies(
            "Images that the model does not see, and files that are not read: replace by a placeholder, or answer 400."
        ),
    ] = "placeholder"
    unknown_tools: Annotated[
        Literal["call", "text"], _replies("Calls of tools that were not offered: return them as calls, or as text.")
    ] = "call"
    """Agents answer a call with an error, so that the model can correct itself."""
    chat_reasoning_field: Annotated[
        Literal["reasoning_content", "reasoning"],
        _replies("Name of the field for reasoning in chat messages. Both names are read."),
    ] = "reasoning_content"
    """OpenAI's API has none."""
    trust_request_chat_template: Annotated[bool, _replies("Allow requests to supply their own chat template.")] = False
    """A client can write any control token with it."""
    audit_log: Annotated[
        Path | None,
        Option(
            "Logging",
            "File for a JSON line of each deletion, reload and other act on the server; - is standard output.",
            syntax="file",
        ),
    ] = None
    store_file: Path | None = None
    """File for stored responses. None: they are stored in `store_url`, or in memory until the server exits."""
    store_url: str | None = None
    """URL of a PostgreSQL database for stored responses, which may hold a password."""
    encryption_key_file: Annotated[
        Path | None,
        _storage("Key file for encrypted_content; created if missing. Default: next to the store.", syntax="file"),
    ] = None
    """None, and no store file: a new key at each start. All servers of a database have a file with the same key."""
    show_uncommitted: Annotated[
        bool, _storage("Show events of stored foreground responses before their commit. They end with their server.")
    ] = False
    store_retention_days: Annotated[float, _storage("Days to keep stored responses.", minimum=0)] = 30.0
    store_max_gib: Annotated[
        float, _storage("Maximum size of stored responses in GiB; the oldest are deleted first.", minimum=0)
    ] = 4.0
    images: Annotated[
        Literal["auto", "off"],
        _images("Images in the input: shown to models that can see, if the extra `vision` is installed; or to none."),
    ] = "auto"
    image_tokens: Annotated[int, _images("Maximum number of tokens of an image.", minimum=1)] = 512
    """Of an image with `detail: high`, twice that number. The default is one for CPUs, where encoding is the cost."""
    max_image_tokens: Annotated[
        int | None,
        _images(
            "Maximum number of tokens of an image with `detail: original`. Default: 1024, or --image-tokens if more.",
            minimum=1,
        ),
    ] = None
    max_images: Annotated[int, _images("Maximum number of images in a conversation.", minimum=1)] = 100
    max_image_mib: Annotated[int, _images("Maximum size of an image in MiB.", minimum=1)] = 20
    media_workers: Annotated[int, _images("Processes that decode images.", minimum=1, maximum=64)] = 1
    media_memory_mib: Annotated[
        int, _images("Memory for prepared images, and for the pages of PDFs, in MiB each.", minimum=1)
    ] = 256
    image_hosts: Annotated[
        tuple[str, ...],
        _images(
            "Host whose URLs this server fetches, by https, or http://HOST; repeatable. Default: none.",
            name="allow-image-host",
            metavar="HOST",
        ),
    ] = ()
    allow_any_image_host: Annotated[
        bool, _images("Let `--allow-image-host '*'` allow every host with public addresses.")
    ] = False
    max_file_mib: Annotated[
        int, _images("Maximum size of an uploaded file in MiB; files of batches have 200.", minimum=1, maximum=4096)
    ] = 64
    allow_lora_updates: Annotated[
        bool,
        Option(
            "Adapters",
            "Let clients load and unload adapters of --lora-dir by /v1/load_lora_adapter. Requires an API key.",
        ),
    ] = False
    lora_dirs: Annotated[
        tuple[str, ...],
        Option("Adapters", "Folder whose adapters clients may load with --allow-lora-updates; repeatable."),
    ] = ()
    tool_servers: Annotated[
        tuple[str, ...],
        _tools(
            "MCP server whose tools this server may call, by its URL (Streamable HTTP); repeatable.",
            metavar="LABEL=URL",
        ),
    ] = ()
    tool_server_keys: Annotated[
        tuple[str, ...],
        _tools("Environment variable with the bearer token of a tool server; repeatable.", metavar="LABEL=VARIABLE"),
    ] = ()
    tool_commands: Annotated[
        tuple[str, ...],
        _tools(
            "MCP server that is started as a command (stdio); repeatable, one in each line of the variable.",
            metavar="LABEL=COMMAND",
            syntax="lines",
        ),
    ] = ()
    tool_approvals: Annotated[
        tuple[str, ...],
        _tools(
            "Tool server whose calls always need the client's approval; repeatable.",
            name="tool-approve",
            metavar="LABEL",
        ),
    ] = ()
    tool_timeout_s: Annotated[
        float, _tools("Time of one call of a tool: 90, 90s, 15m.", syntax="duration", metavar="DURATION")
    ] = 60.0
    """A call that takes longer has failed."""
    hosted_tools: Annotated[
        tuple[str, ...],
        _tools(
            "MCP tool that runs the calls of a type: web_search, open_page or code_interpreter; "
            "code_interpreter=monty runs code in a sandbox of this server; repeatable.",
            name="hosted",
            metavar="TYPE=LABEL/TOOL",
        ),
    ] = ()
    hosted_offline: Annotated[
        tuple[str, ...],
        _tools(
            "Hosted tool whose server reads nothing from the web, so that requests may have it which forbid that: "
            "web_search.",
            name="hosted-offline",
            metavar="TYPE",
        ),
    ] = ()
    vector_stores: Annotated[
        tuple[str, ...],
        _tools("Folder that file_search searches in, under the id of a vector store; repeatable.", metavar="ID=FOLDER"),
    ] = ()
    mcp_allowed_hosts: Annotated[
        tuple[str, ...],
        _tools(
            "Host of MCP servers that clients may name, or HOST:PORT, or * for every public host; repeatable.",
            name="mcp-allow",
            metavar="HOST",
        ),
    ] = ()
    """None: clients may name only the servers of the options above."""
    max_body_bytes: int = 32 * 1024 * 1024
    header_timeout: float = 15.0
    """Time limit from the opening of a connection, or the first byte of a later request on it, to the end of the
    headers."""
    body_timeout: float = 60.0
    """Time limit from the end of the headers to the end of the body."""
    stall_timeout: float = 60.0
    """Time for which a client may read nothing while the send buffers are full."""
    idle_timeout: float = 75.0
    """Keep-alive time of a connection without a request."""

    @property
    def requires_key(self) -> bool:
        """Tells whether clients must send an API key."""
        return bool(self.fixed_keys or self.file_keys)

    @property
    def inspect_mode(self) -> Literal["off", "memory", "store"]:
        """The mode of recording: the one that was chosen, else the default for this address and these keys."""
        is_private = is_loopback(self.host) and not self.requires_key
        return self.inspect or ("memory" if is_private else "off")

    @property
    def encryption_key_path(self) -> Path | None:
        """Path of the key file; None if the key exists in memory only."""
        return self.encryption_key_file or (
            self.store_file and self.store_file.with_name(f"{self.store_file.name}.key")
        )


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach a server that is bound to `host`."""
    return host in LOOPBACK_HOSTS or host.startswith("127.")


DEFAULT_SETTINGS = Settings()
"""Default settings, for functions that receive none."""
