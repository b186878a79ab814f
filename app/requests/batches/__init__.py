"""Requests for files and batches, and the lines of a batch's input file."""
