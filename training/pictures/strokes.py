"""The strokes of the ten digits, as lines through points of a box of 1 by 1 whose y axis points down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Stroke = NDArray[np.float32]
"""Points of a line, [points, 2]: x and y."""


def rotate_points(
    x: NDArray[np.float32], y: NDArray[np.float32], angle: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns the coordinates after a turn by `angle` radians around the origin."""
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return x * cosine - y * sine, x * sine + y * cosine


def make_arc(x: float, y: float, width: float, height: float, start: int, end: int) -> Stroke:
    """Returns an arc of an ellipse around (x, y) with these half axes.

    Angles are in degrees, clockwise from the right: 90 is the bottom, 270 the top.
    """
    angles = np.radians(np.linspace(start, end, 2 + abs(end - start) // 30))
    return np.stack([x + width * np.cos(angles), y + height * np.sin(angles)], axis=1).astype(np.float32)


def make_line(*points: tuple[float, float]) -> Stroke:
    """Returns the line through the points."""
    return np.array(points, np.float32)


def _make_six() -> list[Stroke]:
    return [np.concatenate([make_arc(0.9, 0.66, 0.86, 0.66, 280, 180), make_arc(0.5, 0.68, 0.46, 0.32, 180, 540)])]


DIGIT_STROKES: tuple[list[Stroke], ...] = (
    [make_arc(0.5, 0.5, 0.48, 0.5, 0, 360)],
    [make_line((0.2, 0.25), (0.55, 0.0), (0.55, 1.0))],
    [np.concatenate([make_arc(0.5, 0.28, 0.45, 0.28, 190, 395), make_line((0.02, 1.0), (1.0, 1.0))])],
    [make_arc(0.45, 0.25, 0.42, 0.25, 200, 450), make_arc(0.45, 0.74, 0.48, 0.26, 270, 510)],
    [make_line((0.72, 1.0), (0.72, 0.0), (0.0, 0.68), (1.0, 0.68))],
    [np.concatenate([make_line((0.9, 0.0), (0.15, 0.0)), make_arc(0.45, 0.66, 0.5, 0.34, 225, 510)])],
    _make_six(),
    [make_line((0.0, 0.0), (1.0, 0.0), (0.4, 1.0))],
    [make_arc(0.5, 0.24, 0.38, 0.24, 90, 450), make_arc(0.5, 0.74, 0.46, 0.26, 270, 630)],
    [(1 - stroke).astype(np.float32) for stroke in _make_six()],
)
"""The strokes of each digit, by its value."""
