"""GLUE (Wang et al. 2019) as a benchmark, with one record for each task: reads the official files, computes
GLUE's metrics, and writes the files for its server.

The layouts are those of `glue_data/`, as every GLUE script downloads it, and those of the original data sets
that GLUE only split anew: MRPC, RTE and STS-B. OUT/TASK/data/train.jsonl and so on hold the rows;
OUT/submission/MRPC.tsv and so on are for the server.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.benchmarks.benchmark import (
    BenchmarkTask,
    Figures,
    Layouts,
    OfficialFile,
    OfficialRows,
    Suite,
    TaskFiles,
    describe_layouts,
    draw_rows,
    find_layout,
    read_official,
    read_rows,
    write_rows,
)
from bertsmith.benchmarks.glue_scores import (
    ACCURACY,
    F1,
    MATTHEWS,
    PEARSON,
    SPEARMAN,
    choose_head,
    class_scores,
    format_measures,
    make_figures,
)
from bertsmith.benchmarks.published import GLUE
from bertsmith.errors import InputError
from bertsmith.files import atomic_write
from bertsmith.metrics import scores
from bertsmith.text.files.values import as_label, as_number

WHERE = "https://gluebenchmark.com/tasks"
_LOWEST, _HIGHEST = 0.0, 5.0  # of STS-B


class GlueTask(BenchmarkTask):
    """One of GLUE's tasks, described by its record."""

    settings: Mapping[str, Any] = {"text": "text", "label": "label"}

    def __init__(self, record: "GlueRecord") -> None:
        self.record = record
        self.name, self.measures = record.name, record.measures
        self.head = choose_head(record.measures)
        self.judged_by = format_measures(record.measures)
        if record.train[0][0].pair is not None:
            self.settings = {**self.settings, "text_pair": "text_pair"}
        if record.skip_short:  # some questions are empty, and are kept, as by published scripts
            self.settings = {**self.settings, "missing": "keep"}

    def is_in(self, folder: Path) -> bool:
        return self._find_folder(folder) is not None

    def source(self) -> str:
        record = self.record
        files = (
            f"{record.folders[0]}/ with {describe_layouts(record.train)}, and {describe_layouts(record.dev)}"
        )
        return f"Expected {files}. The files are those of {record.source}."

    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """Writes JSON lines with id, text, text_pair and label, as the base class says."""
        own_folder = self._find_folder(folder)
        if own_folder is None:
            raise InputError(f"{folder} has no {self.name}. {self.source()}")
        notes: list[str] = []
        parts = {"train": self.record.train, "dev": self.record.dev, **self.record.others}
        paths, has_labels = dict[str, Path](), dict[str, bool]()
        for part, layouts in parts.items():
            read = self._read_part(own_folder, part, layouts)
            if read is None:
                continue
            if part in self.record.submission and read.labelled:
                read = self._match_server_rows(own_folder, part, read, notes)
            if read.short:
                notes.append(f"{self.name}, {part}: {read.short:,} broken rows of the official file left out")
            paths[part], has_labels[part] = out / f"{part}.jsonl", read.labelled
            write_rows(paths[part], draw_rows(read.rows, rows))
        missing = [name for name in self.record.submission if name not in paths]
        if missing:
            files = "; ".join(describe_layouts(self.record.others[name]) for name in missing)
            notes.append(f"{self.name}: nothing to hand in for {', '.join(missing)}, for there is no {files}")
        labelled = {
            part: path for part, path in paths.items() if part in self.record.others and has_labels[part]
        }
        unlabelled = {part: path for part, path in paths.items() if not has_labels[part]}
        return TaskFiles(paths["train"], paths["dev"], labelled, unlabelled, tuple(notes))

    def figures(self, rows: Path, predictions: Path) -> Figures:
        gold, predicted = [row["label"] for row in read_rows(rows)], list(read_rows(predictions))
        if self.record.labels:
            metrics = class_scores(gold, [row["label"] for row in predicted], self.record.labels)
        else:
            metrics = scores.regression(gold, [row["score"] for row in predicted])
        return make_figures(metrics, self.measures)

    def write_submission(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """Writes lines of index and prediction, separated by tabs; scores of STS-B are cut to 0 to 5 and have
        three digits.
        """
        if part not in self.record.submission:
            return None
        path = out / self.record.submission[part]
        lines = []
        for row, prediction in zip(read_rows(rows), read_rows(predictions), strict=True):
            if self.record.labels:
                answer = str(prediction["label"])
            else:
                answer = f"{min(max(float(prediction['score']), _LOWEST), _HIGHEST):.3f}"
            lines.append(f"{row['id']}\t{answer}\n")
        atomic_write(path, "index\tprediction\n" + "".join(lines))
        return path

    def _find_folder(self, folder: Path) -> Path | None:
        """The task's folder in the benchmark's; None without training rows."""
        folders = (folder / name for name in self.record.folders)
        return next((path for path in folders if find_layout(path, self.record.train) is not None), None)

    def _read_part(self, folder: Path, part: str, layouts: Layouts) -> OfficialRows | None:
        layout = find_layout(folder, layouts)
        if layout is None and part == "dev":
            raise InputError(
                f"{folder}: expected {describe_layouts(layouts)}, found neither. {self.source()}"
            )
        if layout is None:
            return None
        labelled = layout[0].label is not None  # of a split without labels the server expects every row
        return read_official(
            folder, layout, self._parse_label, skip_short=self.record.skip_short and labelled
        )

    def _match_server_rows(
        self, folder: Path, part: str, read: OfficialRows, notes: list[str]
    ) -> OfficialRows:
        """The rows with labels, if they are the server's rows in the same order or the server's file is
        missing; otherwise the server's rows, without labels, and a note.
        """
        without = tuple(layout for layout in self.record.others[part] if layout[0].label is None)
        official = self._read_part(folder, part, without)
        if official is None or [_texts(row) for row in official.rows] == [_texts(row) for row in read.rows]:
            return read
        notes.append(
            f"{self.name}, {part}: the rows with labels are not those of {describe_layouts(without)} in "
            "their order, which is what the server wants: predicted are the latter, and nothing is judged"
        )
        return official

    def _parse_label(self, value: str, where: str) -> str | float:
        if not self.record.labels:
            return as_number(value, where)
        label = as_label(value, where)
        if label not in self.record.labels:
            raise InputError(
                f"{where}: expected one of {', '.join(self.record.labels)}, the labels of {self.name}, found "
                f"{label!r}. Take the file from the benchmark anew."
            )
        return label


def glue_suite() -> Suite:
    """All tasks, in the order of GLUE's table."""
    return Suite("GLUE", [GlueTask(record) for record in RECORDS], GLUE)


def _texts(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["text"], row.get("text_pair")


class GlueRecord(NamedTuple):
    """The description of one of GLUE's tasks. `folders` are possible names of its folder; `labels` is empty
    for a regression. `others` are further splits by name, and `submission` the names of the server's files by
    split. With `skip_short` the official file has broken rows and empty texts.
    """

    name: str
    folders: tuple[str, ...]
    measures: tuple[str, ...]
    labels: tuple[str, ...]
    train: Layouts
    dev: Layouts
    others: Mapping[str, Layouts]
    submission: Mapping[str, str]
    source: str = WHERE
    skip_short: bool = False


def _one(*files: OfficialFile) -> Layouts:
    """The layouts of a split that is published as any one of these files."""
    return tuple((file,) for file in files)


def _pair(stem: str, first: str, second: str, label: str | None) -> OfficialFile:
    return OfficialFile(f"{stem}.tsv", first, second, label)


def _entailment(stem: str, label: str | None = "label") -> OfficialFile:
    return _pair(stem, "sentence1", "sentence2", label)


def _cola(name: str) -> OfficialFile:
    return OfficialFile(name, 4, None, 2, header=False)


def _mrpc(name: str, label: str | None = "Quality") -> OfficialFile:
    return OfficialFile(name, "#1 String", "#2 String", label)


def _sts(part: str) -> OfficialFile:
    """A file of STS-B's first release, which has no header, and two more columns in some rows."""
    return OfficialFile(f"sts-{part}.csv", 6, 7, 5, header=False)


_BINARY = ("0", "1")
_ENTAILS = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")

RECORDS = (
    GlueRecord(
        "CoLA",
        ("CoLA", "cola"),
        (MATTHEWS,),
        _BINARY,
        _one(_cola("train.tsv")),
        _one(_cola("dev.tsv")),
        {"test": _one(OfficialFile("test.tsv", "sentence"))},
        {"test": "CoLA.tsv"},
    ),
    GlueRecord(
        "SST-2",
        ("SST-2", "sst2", "sst-2"),
        (ACCURACY,),
        _BINARY,
        _one(OfficialFile("train.tsv", "sentence", None, "label")),
        _one(OfficialFile("dev.tsv", "sentence", None, "label")),
        {
            "test": _one(
                OfficialFile("test-labeled.tsv", "sentence", None, "label"),
                OfficialFile("test.tsv", "sentence"),
            )
        },
        {"test": "SST-2.tsv"},
    ),
    GlueRecord(
        "MRPC",
        ("MRPC", "mrpc", "glue_mrpc"),
        (F1, ACCURACY),
        _BINARY,
        _one(_mrpc("train.tsv"), _mrpc("msr-para-train.tsv")),
        _one(_mrpc("dev.tsv"), _mrpc("msr-para-val.tsv")),
        {"test": _one(_mrpc("msr-para-test.tsv"), _mrpc("test.tsv", None))},
        {"test": "MRPC.tsv"},
        "https://www.microsoft.com/en-us/download/details.aspx?id=52398",
    ),
    GlueRecord(
        "STS-B",
        ("STS-B", "stsb", "sts-b"),
        (PEARSON, SPEARMAN),
        (),
        _one(_entailment("train", "score"), _sts("train")),
        _one(_entailment("dev", "score"), _sts("dev")),
        {"test": _one(_sts("test"), _entailment("test", None))},
        {"test": "STS-B.tsv"},
    ),
    GlueRecord(
        "QQP",
        ("QQP", "qqp"),
        (F1, ACCURACY),
        _BINARY,
        _one(_pair("train", "question1", "question2", "is_duplicate")),
        _one(_pair("dev", "question1", "question2", "is_duplicate")),
        {"test": _one(_pair("test", "question1", "question2", None))},
        {"test": "QQP.tsv"},
        skip_short=True,
    ),
    GlueRecord(
        "MNLI",
        ("MNLI", "mnli"),
        (ACCURACY,),
        _NLI,
        _one(_entailment("train", "gold_label")),
        _one(_entailment("dev_matched", "gold_label")),
        {
            "dev-mm": _one(_entailment("dev_mismatched", "gold_label")),
            "test": _one(_entailment("test_matched", None)),
            "test-mm": _one(_entailment("test_mismatched", None)),
            "AX": _one(
                *(_entailment(stem, None) for stem in ("../diagnostic/diagnostic", "../AX/AX", "../AX/test"))
            ),
        },
        {"test": "MNLI-m.tsv", "test-mm": "MNLI-mm.tsv", "AX": "AX.tsv"},
    ),
    GlueRecord(
        "QNLI",
        ("QNLI", "qnli"),
        (ACCURACY,),
        _ENTAILS,
        _one(_pair("train", "question", "sentence", "label")),
        _one(_pair("dev", "question", "sentence", "label")),
        {"test": _one(_pair("test", "question", "sentence", None))},
        {"test": "QNLI.tsv"},
    ),
    GlueRecord(
        "RTE",
        ("RTE", "rte", "glue_rte"),
        (ACCURACY,),
        _ENTAILS,
        ((_entailment("train"), OfficialFile("val.tsv", 2, 3, 4, header=False)), (_entailment("train"),)),
        _one(_entailment("dev")),
        {"test": _one(_entailment("test", None))},
        {"test": "RTE.tsv"},
    ),
    GlueRecord(
        "WNLI",
        ("WNLI", "wnli"),
        (ACCURACY,),
        _BINARY,
        _one(_entailment("train")),
        _one(_entailment("dev")),
        {"test": _one(_entailment("test", None))},
        {"test": "WNLI.tsv"},
    ),
)
