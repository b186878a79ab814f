"""Every object and event of the Responses wire format, as frozen msgspec structs.

This package knows no model, no HTTP and no order. `items` holds the output items, `builtin_calls` those of built-in
tools that the client runs, `inputs` the input items, `tools` the tools, `response` the Response object, `stream` one
class per event, `sse` the framing. `hosted` and `hosted_events` hold the items and events of tools that a server runs.
"""
