"""Lines and markers land on the right dots."""

from bertsmith.training.live_panel import Canvas


def test_a_rising_line_is_drawn_dot_by_dot() -> None:
    canvas = Canvas(2, 1, (0, 3), (0, 3))
    canvas.draw_line([(0, 0), (3, 3)], "cyan")
    assert [row.plain for row in canvas.rows()] == ["⡠⠊"]


def test_what_lies_outside_is_moved_to_the_edge() -> None:
    canvas = Canvas(3, 2, (0, 1), (0, 1))
    canvas.draw_markers([(-5, 9), (7, -3)], "red")
    assert [row.plain for row in canvas.rows()] == ["●  ", "  ●"]


def test_one_point_and_an_empty_range_are_drawn() -> None:
    canvas = Canvas(3, 1, (1, 1), (2, 2))
    canvas.draw_line([(1, 2)], "")
    assert canvas.rows()[0].plain.strip() != ""
