"""The state machine that turns segments into events and decides their order. Imports only `events`."""
