"""docs/plan.md: every plan on the page is made, and takes what the page says."""

import json
import re

import pytest
from page import Page

from bertsmith.planning.accelerators import list_accelerators
from bertsmith.planning.plan import plan


def test_the_plans_of_the_page_are_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    printed, names, shown = "", {}, ""
    for block in Page("plan.md").follow():
        printed, names = printed + capsys.readouterr().out, block.names
        shown = shown or block.text * (block.language == "text")
    words = " ".join(printed.split())
    for line in shown.partition("Warning:")[0].splitlines():
        assert " ".join(line.split()) in words
    assert " ".join(shown.partition("Warning:")[2].split()) in names["made"].warnings[0]
    assert names["made"].hours == pytest.approx(3.6, abs=0.05)
    assert "cost 63.21" in words
    assert "cost 17.16" in words
    assert json.loads(printed[printed.index("\n{") : printed.rindex("\n}") + 2])["tokens"] > 2.9e9


def test_the_two_plans_take_the_hours_of_the_table() -> None:
    rows = re.findall(r"\| ([\d.]+) \(([\d.]+) to ([\d.]+)\) \| (\d+) \|", Page("plan.md").text)
    one = plan("bert-base", hardware="h100", price_per_hour=2.5)
    large = ("data.batch_size=2048", "optimizer.learning_rate=5e-4")
    eight = plan("bert-base", *large, tokens=1.15e10, hardware="h100", gpus=8, price_per_hour=2.5)
    for shown, made, digits in zip(rows, (one, eight), (0, 1), strict=True):
        hours = (made.hours, made.hours * (1 - made.error), made.hours * (1 + made.error))
        assert made.cost is not None
        assert shown == (*(f"{each:.{digits}f}" for each in hours), f"{made.cost:.0f}")


def test_the_page_names_each_hardware_that_there_is() -> None:
    (row,) = (line for line in Page("plan.md").text.splitlines() if line.startswith("| `--hardware`"))
    named = re.findall(r"`([a-z0-9-]+)`", row.rpartition("another:")[2])
    assert named == [name for name in list_accelerators() if not name.startswith("here")]
