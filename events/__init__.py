"""Every object and event of the Responses wire format, as frozen msgspec structs.

This package knows no model, no HTTP and no order. `items` holds the output items, `builtin_calls` those of built-in
tools that the client runs, `inputs` the input items, `tools` the tools, `response` the Response object, `stream` one
class per event, `sse` the framing. `hosted`, `hosted_events` and `hosted_inputs` hold the output items, the events and
the input items of tools that a server runs.
"""
