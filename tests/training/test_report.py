"""The report is one self-contained, safe page that shows the run's numbers and only what is known."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from bertsmith.reporting import charts as report_charts
from bertsmith.reporting import tables as report_tables
from bertsmith.text.corpus.manifest import CorpusManifest, Counts, SkippedFiles, SourceEntry, SplitEntry
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.vocabulary_report import SplitWord, VocabularyReport
from bertsmith.training.run_report import RunReport, render, write_report

pytestmark = pytest.mark.thorough

ATTACK = "</style><script>alert(1)</script><img src=x onerror=alert(1)>"


def step(number: int, **values: Any) -> dict[str, Any]:
    return {
        "kind": "step",
        "step": number,
        "loss": 5.0 + 5.0 / number,
        "mlm_loss": 4.5 + 5.0 / number,
        "nsp_loss": 0.5,
        "learning_rate": 1e-4,
        "gradient_norm": 1.0,
        "tokens": 4000 * number,
        "tokens_per_second": 17_500.0,
        "mfu": 0.625,
        "elapsed": 0.25 * number,
    } | values


def evaluation(number: int, **values: Any) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "step": number,
        "elapsed": 0.25 * number,
        "mlm_loss": 4.2,
        "mlm_perplexity": 66.686,
        "mlm_accuracy": 0.2164,
        "nsp_accuracy": 0.875,
    } | values


def run(length: int) -> list[dict[str, Any]]:
    evaluations = [evaluation(number) for number in range(10, length + 1, 10)]
    end = {"kind": "end", "step": length, "elapsed": 0.25 * length, "reason": "all steps done"}
    return [*(step(number) for number in range(1, length + 1)), *evaluations, end]


# Each curve takes a tenth of a second to draw, so most tests have only one.
LOSSES = [{"kind": "step", "step": number, "loss": 10.0 - number} for number in range(1, 4)]


class Page(HTMLParser):
    """The text, the tags with their attributes, and the headings of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def test_untrusted_text_stays_text_wherever_it_comes_from() -> None:
    content = RunReport(
        title=ATTACK,
        records=[LOSSES[0], {"kind": "warning", "step": 1, "message": ATTACK}],
        recipe={ATTACK: ATTACK},
        defaults={ATTACK: "other"},
        corpus={"licence": ATTACK, "sources": [{"name": ATTACK, "kept": {"words": 3}}]},
        vocabulary={"most_broken": [{"word": ATTACK, "pieces": [ATTACK]}], "examples": [[ATTACK]]},
        model={"name": ATTACK, "parameters": {ATTACK: 5}},
        fills=[{"text": ATTACK, "answer": ATTACK, "before": [(ATTACK, 0.5)], "after": [(ATTACK, 0.5)]}],
        comparison=[{ATTACK: ATTACK}],
        environment={ATTACK: ATTACK},
        command=ATTACK,
    )
    page = Page(render(content))
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "link"}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.texts.count(ATTACK) >= 14


def test_the_page_needs_nothing_from_outside() -> None:
    html = render(RunReport(records=[*LOSSES, evaluation(3)]))
    addresses = [
        value for _, attributes in Page(html).tags for name, value in attributes.items() if name in LINKS
    ]
    assert addresses  # the pictures refer to their own parts
    assert all(address is not None and address.startswith("#") for address in addresses)
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?(.)", html))
    assert "@import" not in html


LINKS = ("src", "href", "xlink:href", "srcset", "data", "action")


def test_the_last_figures_of_the_run_stand_on_top() -> None:
    page = Page(
        render(
            RunReport(title="a run", records=run(200), model={"parameters": {"a": 4_000_000, "b": 200_000}})
        )
    )
    texts = " | ".join(page.texts)
    for name, value in {
        "held-out MLM accuracy": "21.6 %",
        "held-out MLM perplexity": "66.7",
        "held-out NSP accuracy": "87.5 %",
        "parameters": "4.2 M",
        "steps": "200",
        "real tokens seen": "800 k",
        "of training": "50 s",
        "real tokens per second": "17,500",
        "of the matmul peak": "62.5 %",
    }.items():
        assert f"{value} | {name}" in texts
    assert "ended: all steps done" in texts


@pytest.mark.parametrize(
    ("field", "value", "heading"),
    [
        ("records", LOSSES, "Curves"),
        ("recipe", {"seed": 1}, "Settings"),
        ("corpus", {"licence": "MIT"}, "Data"),
        ("vocabulary", {"pieces_per_word": 1.5}, "Vocabulary"),
        ("model", {"layers": 4}, "Model"),
        (
            "fills",
            [{"text": "a [MASK]", "answer": None, "before": [], "after": [("b", 0.5)]}],
            "Filled masks",
        ),
        ("comparison", [{"model": "ours", "mlm_accuracy": 0.5}], "Comparison"),
        ("environment", {"torch": "2.13.0"}, "Do it again"),
        ("command", "bertsmith pretrain", "Do it again"),
    ],
)
def test_a_section_is_there_when_its_content_is(field: str, value: Any, heading: str) -> None:
    def headings(content: RunReport) -> list[str]:
        return re.findall(r"<h2>(.*?)</h2>", render(content))

    assert headings(RunReport()) == []
    assert headings(RunReport(**{field: value})) == [heading]


def test_a_run_that_was_resumed_began_when_its_first_process_did() -> None:
    starts = [{"kind": "start", "step": at, "time": 86_400.0 * at} for at in (0, 1)]
    page = render(RunReport(records=[starts[0], LOSSES[0], starts[1], LOSSES[1]]))
    assert "begun 1970-01-01" in page
    assert "begun 1970-01-02" not in page


@pytest.mark.parametrize("unusable", [None, math.nan, math.inf])
def test_losses_that_are_not_finite_are_told_and_not_drawn(unusable: float | None) -> None:
    records = [LOSSES[0], {"kind": "step", "step": 2, "loss": unusable}, LOSSES[2]]
    assert "1 of 3 logged losses are not finite" in render(RunReport(records=records))
    loss = report_charts.charts(records)[0].lines[0]
    assert [x for x, _ in loss.points] == [1, 3]


def test_a_run_of_nothing_but_bad_losses_still_has_a_report() -> None:
    records = [step(number, loss=None, mlm_loss=None) for number in range(1, 4)]
    titles = [chart.title for chart in report_charts.charts(records)]
    assert "MLM loss by step" not in titles
    assert "Learning rate" in titles
    assert "3 of 3 logged losses" in render(RunReport(records=records))


def test_a_run_of_one_step_without_evaluation_shows_its_point() -> None:
    (chart, *_) = report_charts.charts([step(1)])
    assert [line.points for line in chart.lines] == [[(1, 9.5)], []]
    assert "<use" in report_charts.draw(chart)  # the marker


def test_the_curves_are_those_of_the_log() -> None:
    records = [*run(40), {"kind": "phase", "step": 30, "sequence_length": 512}]
    found = {chart.title: chart for chart in report_charts.charts(records)}
    assert list(found) == [
        *("MLM loss by step", "MLM loss by time", "MLM accuracy", "NSP accuracy", "Learning rate"),
        *("Gradient norm", "Tokens per second", "Share of the matrix-product speed"),
    ]
    training, heldout = found["MLM loss by step"].lines
    assert training.points == [(number, 4.5 + 5.0 / number) for number in range(1, 41)]
    assert heldout.points == [(number, 4.2) for number in (10, 20, 30, 40)]
    assert found["MLM loss by step"].marks == [(30, "512 tokens")]
    assert found["MLM loss by time"].x_label == "seconds of training"


@pytest.mark.parametrize(("seconds", "unit"), [(100, "seconds"), (3000, "minutes"), (20_000, "hours")])
def test_time_is_shown_in_a_readable_unit(seconds: float, unit: str) -> None:
    chart = report_charts.charts([step(1, elapsed=seconds)])[1]
    assert chart.x_label == f"{unit} of training"
    length = {"seconds": 1, "minutes": 60, "hours": 3600}[unit]
    assert chart.lines[0].points[0][0] == pytest.approx(seconds / length)


def test_long_logs_are_thinned() -> None:
    records = [step(number) for number in range(1, 20_001)]
    for chart in report_charts.charts(records):
        assert all(500 <= len(line.points) <= 1000 for line in chart.lines if line.points)


def test_pictures_are_valid_and_take_all_colours_from_the_page() -> None:
    for chart in report_charts.charts(run(60))[:3]:
        svg = report_charts.draw(chart)
        ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:dc="x" ', 1))
        assert re.findall(r"#[0-9a-fA-F]{6}\b", svg) == []
        assert "var(--" in svg


def test_the_same_content_gives_the_same_bytes() -> None:
    content = RunReport(records=[*LOSSES, evaluation(3)], recipe={"seed": 1})
    assert render(content) == render(content)


def test_drawing_leaves_the_users_matplotlib_alone() -> None:
    before = dict(matplotlib.rcParams)
    render(RunReport(records=LOSSES))
    assert dict(matplotlib.rcParams) == before
    program = (
        "import sys, bertsmith.training.run_report as report; assert 'matplotlib' not in sys.modules;"
        "report.render(report.RunReport(records=[{'kind': 'step', 'step': 1, 'loss': 1.0}]));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_page_is_written_whole_and_alone(tmp_path: Path) -> None:
    folder = tmp_path / "my-run"
    folder.mkdir()
    path = write_report(folder, RunReport(command="bertsmith pretrain"))
    assert [entry.name for entry in folder.iterdir()] == ["report.html"]
    assert "<title>my-run · Bertsmith</title>" in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_the_right_answer_is_marked_among_the_guesses() -> None:
    fill = {
        "text": "a [MASK]",
        "answer": "sum",
        "before": [("the", 0.015)],
        "after": [("sum", 0.42), ("mean", 0.1)],
    }
    html = render(RunReport(fills=[fill]))
    assert re.findall(r'class="guess right">\s*<span class="token">(.*?)<', html) == ["sum"]
    assert re.findall(r'<i style="width:(.*?)">', html) == ["1.5%", "42.0%", "10.0%"]


def test_only_settings_that_differ_are_marked() -> None:
    recipe = {"steps": 100, "optimizer": {"betas": [0.9, 0.98], "max_grad_norm": 1.0}, "new": True}
    defaults = {"steps": None, "optimizer": {"betas": [0.9, 0.999], "max_grad_norm": 1.0}}
    assert [(s.name, s.value, s.default) for s in report_tables.settings(recipe, defaults)] == [
        ("steps", "100", "–"),
        ("optimizer.betas", "0.9, 0.98", "0.9, 0.999"),
        ("optimizer.max_grad_norm", "1.0", None),
        ("new", "yes", "–"),
    ]
    assert all(setting.default is None for setting in report_tables.settings(recipe, None))


def test_the_manifest_of_a_corpus_is_understood() -> None:
    def source(name: str, words: int) -> SourceEntry:
        return SourceEntry(
            name=name,
            origin="here",
            format="file",
            size=9,
            sha256=None,
            kept=Counts(documents=7, sentences=8, words=words, bytes=9),
            exact_duplicates=2,
            near_duplicates=1,
            empty=4,
        )

    manifest = CorpusManifest(
        created_by="bertsmith",
        licence="MIT",
        settings=CorpusSettings(),
        splits={
            "train": SplitEntry(counts=Counts(documents=1234, words=99), shards=()),
            "heldout": SplitEntry(counts=Counts(), shards=()),
        },
        skipped=SkippedFiles(binary=3),
        sources=tuple(source(f"source {number}", number) for number in range(12)),
    ).model_dump(mode="json")
    splits, sources = report_tables.corpus_tables(manifest)
    assert splits.rows == [["train", "1,234", "0", "99", "0"], ["heldout", "0", "0", "0", "0"]]
    assert sources.rows[0] == ["source 11", "7", "11", "3", "4"]
    assert (len(sources.rows), sources.more) == (10, 2)
    facts = dict(report_tables.corpus_facts(manifest))
    assert facts["Exact duplicates dropped"] == "24"
    assert facts["Empty dropped"] == "48"
    assert facts["Licence"] == "MIT"
    assert facts["Skipped · binary"] == "3"


def test_the_report_of_a_vocabulary_is_understood() -> None:
    words = tuple(
        SplitWord(word=f"w{number}", pieces=("w", f"##{number}"), count=number) for number in range(12)
    )
    report = VocabularyReport(
        vocab_size=8192,
        asked_for=8192,
        alphabet=311,
        lowercase=True,
        tokenizer_sha256="ab",
        split="heldout",
        sentences=100,
        words=1500,
        tokens=2000,
        pieces_per_word=1.3125,
        whole_words=0.8123,
        unknown_words=0.0004,
        unknown_tokens=0.0,
        tokens_per_character=0.25,
        tokens_per_sentence=20.0,
        sentences_within={128: 0.995},
        most_broken=words,
        costliest=(),
        unknown=(),
        examples=(("the", "fox", "##es"), ("jump",)),
    ).model_dump(mode="json")
    facts = dict(report_tables.vocabulary_facts(report))
    assert facts["Vocabulary size"] == "8,192"
    assert facts["Pieces per word"] == "1.312"
    assert facts["Whole words"] == "81.2 %"
    assert facts["Unknown words"] == "0.04 %"
    assert facts["Sentences within · 128"] == "99.5 %"
    broken, examples = report_tables.vocabulary_tables(report)
    assert broken.rows[3] == ["w3", "w ##3", "3"]
    assert (len(broken.rows), broken.more) == (10, 2)
    assert examples.rows == [["the fox ##es"], ["jump"]]


def test_values_are_readable_and_shares_are_percentages() -> None:
    values = {"mfu": 0.0004, "mlm_accuracy": 0.8123, "pieces_per_word": 1.31415, "vocab_size": 30522}
    assert report_tables.facts(values) == [
        ("MFU", "0.04 %"),
        ("MLM accuracy", "81.2 %"),
        ("Pieces per word", "1.314"),
        ("Vocabulary size", "30,522"),
    ]


def test_a_table_sets_text_to_the_left_and_tells_what_it_leaves_out() -> None:
    rows = [{"word": f"w{number}", "count": 1000, "pieces": ["a", "##b"]} for number in range(25)]
    table = report_tables.table("Longest tail", rows)
    assert table.columns == ["Word", "Count", "Pieces"]
    assert table.rows[0] == ["w0", "1,000", "a, ##b"]
    assert (len(table.rows), table.more) == (20, 5)
    assert 1 not in table.text_columns
    assert 0 in table.text_columns
