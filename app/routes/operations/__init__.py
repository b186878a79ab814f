"""Endpoints for operators: reloads, and what keys have used."""
