"""Adapters of the served model: their options, and their loading and unloading at run time."""
