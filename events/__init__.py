"""Every object and event of the Responses wire format, as frozen msgspec structs.

This package knows no model, no HTTP and no order. `items` holds the output items, `inputs` the input items and tools,
`response` the Response object, `stream` one class per event, `sse` the framing. `hosted` and `hosted_events` hold the
items and events of tools that a server runs itself.
"""
