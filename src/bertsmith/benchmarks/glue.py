"""GLUE's tasks (Wang et al. 2019) as a benchmark, one record a task: official files to rows, rows judged by
GLUE's metrics, files for its server.

The layouts are those of `glue_data/`, as every GLUE script downloads it, and those of the data's first
publications, where GLUE only divided them anew: MRPC, RTE and STS-B. OUT/TASK/data/train.jsonl and so on hold
the rows; OUT/submission/MRPC.tsv and so on what is handed in.
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
    draw,
    find_layout,
    names_of,
    read_official,
    rows_of,
    write_rows,
)
from bertsmith.benchmarks.glue_scores import (
    ACCURACY,
    F1,
    MATTHEWS,
    PEARSON,
    SPEARMAN,
    class_scores,
    head_of,
    in_words,
    scored,
)
from bertsmith.benchmarks.published import GLUE
from bertsmith.errors import InputError
from bertsmith.files import atomic_write
from bertsmith.metrics import scores
from bertsmith.text.files.values import as_label, as_number

WHERE = "https://gluebenchmark.com/tasks"
_LOWEST, _HIGHEST = 0.0, 5.0  # of STS-B


class GlueTask(BenchmarkTask):
    """One of them, by its record."""

    settings: Mapping[str, Any] = {"text": "text", "label": "label"}

    def __init__(self, record: "GlueRecord") -> None:
        self.record = record
        self.name, self.measures = record.name, record.measures
        self.head = head_of(record.measures)
        self.judged_by = in_words(record.measures)
        if record.train[0][0].pair is not None:
            self.settings = {**self.settings, "text_pair": "text_pair"}
        if record.skip_short:  # some questions are empty, and read as they are, as by published scripts
            self.settings = {**self.settings, "missing": "keep"}

    def is_in(self, folder: Path) -> bool:
        return self._folder(folder) is not None

    def source(self) -> str:
        record = self.record
        wanted = f"{record.folders[0]}/ with {names_of(record.train)}, and {names_of(record.dev)}"
        return f"Expected {wanted}. The files are those of {record.source}."

    def prepare(self, folder: Path, out: Path, rows: int | None) -> TaskFiles:
        """As JSON lines: id, text, text_pair, label."""
        found = self._folder(folder)
        if found is None:
            raise InputError(f"{folder} has no {self.name}. {self.source()}")
        notes: list[str] = []
        parts = {"train": self.record.train, "dev": self.record.dev, **self.record.others}
        paths, labelled = dict[str, Path](), dict[str, bool]()
        for part, layouts in parts.items():
            read = self._read(found, part, layouts)
            if read is None:
                continue
            if part in self.record.submission and read.labelled:
                read = self._as_the_server_has_it(found, part, read, notes)
            if read.short:
                notes.append(f"{self.name}, {part}: {read.short:,} broken rows of the official file left out")
            paths[part], labelled[part] = out / f"{part}.jsonl", read.labelled
            write_rows(paths[part], draw(read.rows, rows))
        missing = [name for name in self.record.submission if name not in paths]
        if missing:
            wanted = "; ".join(names_of(self.record.others[name]) for name in missing)
            notes.append(
                f"{self.name}: nothing to hand in for {', '.join(missing)}, for there is no {wanted}"
            )
        judged = {part: path for part, path in paths.items() if part in self.record.others and labelled[part]}
        unjudged = {part: path for part, path in paths.items() if not labelled[part]}
        return TaskFiles(paths["train"], paths["dev"], judged, unjudged, tuple(notes))

    def figures(self, rows: Path, predictions: Path) -> Figures:
        gold, said = [row["label"] for row in rows_of(rows)], list(rows_of(predictions))
        if self.record.labels:
            found = class_scores(gold, [row["label"] for row in said], self.record.labels)
        else:
            found = scores.regression(gold, [row["score"] for row in said])
        return scored(found, self.measures)

    def hand_in(self, part: str, rows: Path, predictions: Path, out: Path) -> Path | None:
        """index and prediction, tab-separated; scores of STS-B within 0 to 5, by three digits."""
        if part not in self.record.submission:
            return None
        path = out / self.record.submission[part]
        lines = []
        for row, said in zip(rows_of(rows), rows_of(predictions), strict=True):
            if self.record.labels:
                answer = str(said["label"])
            else:
                answer = f"{min(max(float(said['score']), _LOWEST), _HIGHEST):.3f}"
            lines.append(f"{row['id']}\t{answer}\n")
        atomic_write(path, "index\tprediction\n" + "".join(lines))
        return path

    def _folder(self, folder: Path) -> Path | None:
        """The task's own, if there are rows to train on."""
        own = (folder / name for name in self.record.folders)
        return next((each for each in own if find_layout(each, self.record.train) is not None), None)

    def _read(self, folder: Path, part: str, layouts: Layouts) -> OfficialRows | None:
        layout = find_layout(folder, layouts)
        if layout is None and part == "dev":
            raise InputError(f"{folder}: expected {names_of(layouts)}, found neither. {self.source()}")
        if layout is None:
            return None
        labelled = layout[0].label is not None  # the server counts every row of a part without
        return read_official(folder, layout, self._label, skip_short=self.record.skip_short and labelled)

    def _as_the_server_has_it(
        self, folder: Path, part: str, read: OfficialRows, notes: list[str]
    ) -> OfficialRows:
        """The rows with labels if they are the server's rows in the server's order, as far as these are
        there; else the server's, without.
        """
        without = tuple(layout for layout in self.record.others[part] if layout[0].label is None)
        official = self._read(folder, part, without)
        if official is None or [_texts(row) for row in official.rows] == [_texts(row) for row in read.rows]:
            return read
        notes.append(
            f"{self.name}, {part}: the rows with labels are not those of {names_of(without)} in their order, "
            "which is what the server wants: predicted are the latter, and nothing is judged"
        )
        return official

    def _label(self, value: str, where: str) -> str | float:
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
    """`folders` are the names that the task's folder has; `labels` are none for a number. `others` are
    further parts by name, and `submission` the names of the files that the server asks for. `skip_short`: the
    official file has broken rows, and texts that are empty.
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
    """The layouts of a part that is published in one of these files alone."""
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
    """The first release: no header, and in some rows two columns more."""
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
