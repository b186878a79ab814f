"""The machine that an engine runs on: its processors, memory limits and allocator."""
