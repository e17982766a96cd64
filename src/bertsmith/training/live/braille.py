"""Curves in a terminal: each character is a braille cell of 2 × 4 dots."""

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from bertsmith.reporting.curves import Point

# The bits of a braille cell, by row and column of its dots (Unicode 15, section 21.1).
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BLANK = 0x2800


class Canvas:
    """`width` × `height` characters that show x in [left, right] and y in [bottom, top]."""

    def __init__(self, width: int, height: int, x_range: Point, y_range: Point) -> None:
        self.width, self.height = width, height
        self._x_range, self._y_range = x_range, y_range
        self._cells = [[BLANK] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]

    def line(self, points: Sequence[Point], style: str) -> None:
        """Joins the points; what lies outside is moved to the edge."""
        dots = [self._dot(point) for point in points]
        for start, end in zip(dots, dots[1:] or dots):
            self._join(start, end, style)

    def markers(self, points: Sequence[Point], style: str, marker: str = "●") -> None:
        """Puts a whole character on each point, over what is there."""
        for point in points:
            column, row = self._dot(point)
            self._cells[row // 4][column // 2] = ord(marker)
            self._styles[row // 4][column // 2] = style

    def rows(self) -> list[Text]:
        """The lines of the picture, the top one first."""
        return [_styled(cells, styles) for cells, styles in zip(self._cells, self._styles, strict=True)]

    def _dot(self, point: Point) -> tuple[int, int]:
        column = _scale(point[0], self._x_range, 2 * self.width)
        row = _scale(point[1], self._y_range, 4 * self.height)
        return column, 4 * self.height - 1 - row

    def _join(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        (left, first), (right, last) = start, end
        steps = max(abs(right - left), abs(last - first), 1)
        for step in range(steps + 1):
            column = left + round(step * (right - left) / steps)
            row = first + round(step * (last - first) / steps)
            self._cells[row // 4][column // 2] |= DOTS[row % 4][column % 2]
            self._styles[row // 4][column // 2] = style


def _styled(cells: Sequence[int], styles: Sequence[str]) -> Text:
    """One row of the picture; cells of one style go together, as each change costs rich as much as a line."""
    row, column = Text(), 0
    for style, run in groupby(styles):
        end = column + len(list(run))
        row.append("".join(" " if cell == BLANK else chr(cell) for cell in cells[column:end]), style)
        column = end
    return row


def _scale(value: float, value_range: Point, size: int) -> int:
    """The dot 0..size-1 that shows `value`; an empty range is shown in its middle."""
    low, high = value_range
    share = (value - low) / (high - low) if high > low else 0.5
    return min(max(int(share * size), 0), size - 1)
