"""What is said: every object and event of the Responses wire, as frozen msgspec structs.

This package knows no model, no HTTP and no order. `items` are what a model may put out, `inputs` what a
client may put in, `response` the object both meet in, `stream` one class per event, `sse` the framing.
"""
