"""Compiled CPU kernels: C sources, the compiler call, and the Python bindings. Imports no model code."""
