"""Fits a loaded model to the machine: selects its forward pass, and replaces layers by faster ones, each verified."""
