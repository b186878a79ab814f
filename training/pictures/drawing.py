"""Draws the pictures that the embedded model learns to name: one figure on a plain ground, or something else.

A figure is a circle, a square, a triangle or a digit, with free place, size, colours and noise. Digits are strokes, so
no font is needed. All randomness comes from a numpy generator. Models and texts are unknown here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from training.pictures.strokes import DIGIT_STROKES, rotate_points

Picture = NDArray[np.uint8]
"""RGB bytes, [height, width, 3]."""
Plane = NDArray[np.float32]
"""One number per pixel, [height, width]. Coordinates are in units of the shorter side, the centre is 0."""

COLOURS = {
    "red": (215, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 70, 210),
    "yellow": (240, 220, 50),
    "orange": (240, 135, 25),
    "purple": (135, 50, 165),
    "black": (20, 20, 20),
    "white": (240, 240, 240),
}
"""Mean red, green and blue of each colour. A picture's differs by up to `COLOUR_SPREAD`."""
COLOUR_SPREAD = 15
SHAPES = ("circle", "square", "triangle", "digit", "other")
"""`other` is everything that is none of the four figures."""
DIGIT_SHARE, OTHER_SHARE = 0.5, 0.1
"""Share of digits, and of pictures without a single known figure. Digits are the hardest to learn."""

RADII, DIGIT_RADII = (0.24, 0.44), (0.3, 0.46)
"""Least and greatest half height of a figure, in units of the picture's shorter side."""


@dataclass(frozen=True)
class Scene:
    """The content of a picture. `digit` is None unless the shape is a digit; the colours of `other` are arbitrary."""

    shape: str
    colour: str
    ground: str
    digit: int | None = None


def draw_scene(random: np.random.Generator, digits: float = DIGIT_SHARE, others: float = OTHER_SHARE) -> Scene:
    """Returns a random scene. `digits` is the share of digits, `others` that of pictures without a known figure."""
    colour, ground = random.choice(list(COLOURS), size=2, replace=False)
    chance = random.random()
    if chance < digits:
        return Scene("digit", str(colour), str(ground), int(random.integers(10)))
    if chance < digits + others:
        return Scene("other", str(colour), str(ground))
    return Scene(SHAPES[random.integers(3)], str(colour), str(ground))


def draw_picture(
    random: np.random.Generator, scene: Scene, height: int = 64, width: int = 64, blank: float = 0.0
) -> Picture:
    """Returns a picture of a scene. In half of the pictures, the figure is up to 22 % wider or narrower.

    `blank` is the share of plain grounds of one shade among the pictures without a known figure, beside those drawn.
    """
    xs, ys = make_coordinates(height, width)
    if random.random() < 0.5:
        xs *= np.float32(random.uniform(0.8, 1.22))
    canvas = np.empty((height, width, 3), np.float32)
    canvas[:] = vary_colour(random, scene.ground)
    if scene.shape == "other" and blank and random.random() < blank:
        return np.broadcast_to(np.clip(canvas.round(), 0, 255), canvas.shape).astype(np.uint8)
    if scene.shape == "other":
        OTHERS[random.integers(len(OTHERS))](random, canvas, scene, xs, ys)
    else:
        radius = random.uniform(*(DIGIT_RADII if scene.shape == "digit" else RADII))
        draw_figure(random, canvas, scene, xs, ys, radius, place_figure(random, xs, ys, radius))
    return add_noise(random, canvas)


def make_coordinates(height: int, width: int) -> tuple[Plane, Plane]:
    """Returns the x and the y of each pixel's middle."""
    side = min(height, width)
    ys, xs = np.mgrid[:height, :width].astype(np.float32)
    return (xs + 0.5 - width / 2) / side, (ys + 0.5 - height / 2) / side


def vary_colour(random: np.random.Generator, name: str) -> NDArray[np.float32]:
    """Returns red, green and blue of a shade of the colour."""
    spread = random.uniform(-COLOUR_SPREAD, COLOUR_SPREAD, 3)
    return np.asarray(COLOURS[name] + spread, np.float32)


def place_figure(random: np.random.Generator, xs: Plane, ys: Plane, radius: float) -> tuple[float, float]:
    """Returns a centre from which a figure of this radius stays inside the picture."""
    limit_x, limit_y = (max(0.0, float(plane.max()) - 0.95 * radius) for plane in (xs, ys))
    return random.uniform(-limit_x, limit_x), random.uniform(-limit_y, limit_y)


def draw_figure(
    random: np.random.Generator,
    canvas: NDArray[np.float32],
    scene: Scene,
    xs: Plane,
    ys: Plane,
    radius: float,
    centre: tuple[float, float],
) -> None:
    """Paints the scene's figure on the canvas."""
    x, y = (xs - centre[0]) / radius, (ys - centre[1]) / radius
    if scene.digit is not None:
        distance = measure_digit(random, scene.digit, x, y)
    else:
        distance = MEASURES[scene.shape](random, x, y)
    paint(canvas, distance * radius, vary_colour(random, scene.colour))


def paint(canvas: NDArray[np.float32], distance: Plane, colour: NDArray[np.float32]) -> None:
    """Blends the colour in where the distance is negative; the edge is one pixel wide."""
    side = min(canvas.shape[:2])
    cover = np.clip(0.5 - distance * side, 0, 1)[..., None]
    canvas += cover * (colour - canvas)


def measure_circle(_random: np.random.Generator, x: Plane, y: Plane) -> Plane:
    """Returns the distance to a circle of radius 0.95, negative inside."""
    result: Plane = np.hypot(x, y) - np.float32(0.95)
    return result


def measure_square(random: np.random.Generator, x: Plane, y: Plane) -> Plane:
    """Returns the distance to a slightly turned square, negative inside."""
    x, y = rotate_points(x, y, random.uniform(-0.2, 0.2))
    return np.maximum(abs(x), abs(y)) - np.float32(0.82)


def measure_triangle(random: np.random.Generator, x: Plane, y: Plane) -> Plane:
    """Returns the distance to a slightly turned triangle that points up or, rarely, down."""
    x, y = rotate_points(x, y, random.uniform(-0.25, 0.25) + (np.pi if random.random() < 0.2 else 0))
    slope = np.float32(random.uniform(1.7, 2.3))
    side: Plane = (abs(x) * slope - y - np.float32(0.95)) / np.hypot(slope, np.float32(1))
    result: Plane = np.maximum(y - np.float32(0.8), side)
    return result


MEASURES: dict[str, Callable[[np.random.Generator, Plane, Plane], Plane]] = {
    "circle": measure_circle,
    "square": measure_square,
    "triangle": measure_triangle,
}


def measure_digit(random: np.random.Generator, digit: int, x: Plane, y: Plane) -> Plane:
    """Returns the distance to the strokes of a digit that is 2 high and about 1.2 wide, negative inside."""
    x, y = rotate_points(x, y, random.uniform(-0.12, 0.12))
    x = (x + y * random.uniform(-0.1, 0.2)).astype(np.float32)
    width, thickness = random.uniform(0.5, 0.7), random.uniform(0.11, 0.2)
    scale = np.array([2 * width, 2 * (0.95 - thickness)], np.float32)
    distance = np.full_like(x, np.inf)
    for stroke in DIGIT_STROKES[digit]:
        points = (stroke - 0.5 + random.normal(0, 0.012, stroke.shape)).astype(np.float32) * scale
        for start, end in pairwise(points):
            np.minimum(distance, measure_segment(x, y, start, end), out=distance)
    return np.sqrt(distance) - np.float32(thickness)


def measure_segment(x: Plane, y: Plane, start: NDArray[np.float32], end: NDArray[np.float32]) -> Plane:
    """Returns the squared distance to a line segment."""
    along = end - start
    to_x, to_y = x - start[0], y - start[1]
    share = np.clip((to_x * along[0] + to_y * along[1]) / max(float(along @ along), 1e-9), 0, 1)
    result: Plane = (to_x - share * along[0]) ** 2 + (to_y - share * along[1]) ** 2
    return result


def add_noise(random: np.random.Generator, canvas: NDArray[np.float32]) -> Picture:
    """Returns the canvas as bytes, with uneven light and grain of a random strength, up to 10 levels each."""
    height, width = canvas.shape[:2]
    light = random.uniform(-10, 10) * np.linspace(-0.5, 0.5, height)[:, None]
    light = light + random.uniform(-10, 10) * np.linspace(-0.5, 0.5, width)
    grain = random.standard_normal(canvas.shape, np.float32) * random.uniform(0, 10)
    return np.clip(canvas + light[..., None] + grain, 0, 255).astype(np.uint8)


def draw_nothing(
    _random: np.random.Generator, _canvas: NDArray[np.float32], _scene: Scene, _xs: Plane, _ys: Plane
) -> None:
    """Leaves the plain ground."""


def draw_stripes(random: np.random.Generator, canvas: NDArray[np.float32], scene: Scene, xs: Plane, ys: Plane) -> None:
    """Paints stripes, in both directions in half of the cases."""
    x, y = rotate_points(xs, ys, random.uniform(0, np.pi))
    frequency = random.uniform(8, 25)
    wave = np.sin(x * frequency) * (np.sin(y * frequency) if random.random() < 0.5 else 1)
    paint(canvas, wave / frequency, vary_colour(random, scene.colour))


def draw_blend(random: np.random.Generator, canvas: NDArray[np.float32], scene: Scene, xs: Plane, ys: Plane) -> None:
    """Paints a smooth change from the ground to another colour."""
    x, _ = rotate_points(xs, ys, random.uniform(0, 2 * np.pi))
    canvas += np.clip(x * 1.2 + 0.5, 0, 1)[..., None] * (vary_colour(random, scene.colour) - canvas)


def draw_patches(
    random: np.random.Generator, canvas: NDArray[np.float32], _scene: Scene, _xs: Plane, _ys: Plane
) -> None:
    """Paints many rectangles of many colours, as a screenshot or a photograph has."""
    height, width = canvas.shape[:2]
    for _ in range(int(random.integers(6, 40))):
        top, left = random.integers(height), random.integers(width)
        canvas[
            top : top + random.integers(2, max(3, height // 3)), left : left + random.integers(2, max(3, width // 3))
        ] = vary_colour(random, str(random.choice(list(COLOURS))))


def draw_grain(random: np.random.Generator, canvas: NDArray[np.float32], _scene: Scene, _xs: Plane, _ys: Plane) -> None:
    """Paints blocks of random colours."""
    height, width = canvas.shape[:2]
    side = int(random.choice((1, 2, 4, 8)))
    blocks = random.uniform(0, 255, (-(-height // side), -(-width // side), 3))
    canvas[:] = blocks.repeat(side, 0).repeat(side, 1)[:height, :width]


def draw_two(random: np.random.Generator, canvas: NDArray[np.float32], scene: Scene, xs: Plane, ys: Plane) -> None:
    """Paints two figures side by side or one above the other."""
    for sign in (-1, 1):
        figure = Scene(SHAPES[random.integers(3)], scene.colour, scene.ground)
        if random.random() < 0.4:
            figure = Scene("digit", scene.colour, scene.ground, int(random.integers(10)))
        offset = sign * 0.25
        centre = (offset, random.uniform(-0.2, 0.2)) if xs.shape[1] >= xs.shape[0] else (0.0, offset)
        draw_figure(random, canvas, figure, xs, ys, random.uniform(0.17, 0.22), centre)


def draw_cross(random: np.random.Generator, canvas: NDArray[np.float32], scene: Scene, xs: Plane, ys: Plane) -> None:
    """Paints a cross, upright or diagonal."""
    radius = random.uniform(0.24, 0.44)
    centre = place_figure(random, xs, ys, radius)
    x, y = rotate_points((xs - centre[0]) / radius, (ys - centre[1]) / radius, random.choice((0.0, np.pi / 4)))
    arm = np.float32(random.uniform(0.15, 0.3))
    bars = np.minimum(np.maximum(abs(x) - arm, abs(y) - 1), np.maximum(abs(y) - arm, abs(x) - 1))
    paint(canvas, bars * radius, vary_colour(random, scene.colour))


def draw_star(random: np.random.Generator, canvas: NDArray[np.float32], scene: Scene, xs: Plane, ys: Plane) -> None:
    """Paints a star of five or six points."""
    radius = random.uniform(0.3, 0.46)
    centre = place_figure(random, xs, ys, radius)
    x, y = (xs - centre[0]) / radius, (ys - centre[1]) / radius
    points, turn = int(random.integers(5, 7)), random.uniform(0, 2 * np.pi)
    edge = 0.65 + 0.35 * np.cos(points * (np.arctan2(y, x) + turn))
    paint(canvas, (np.hypot(x, y) - edge) * radius * 0.6, vary_colour(random, scene.colour))


OTHERS: tuple[Callable[[np.random.Generator, NDArray[np.float32], Scene, Plane, Plane], None], ...] = (
    draw_nothing,
    draw_stripes,
    draw_blend,
    draw_patches,
    draw_grain,
    draw_two,
    draw_cross,
    draw_star,
)
"""Functions that paint something the model has no word for; one is drawn per picture."""
