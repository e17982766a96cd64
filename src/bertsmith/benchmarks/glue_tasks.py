"""GLUE's tasks (Wang et al. 2019), one record a task: files, columns, labels, metrics, files to hand in.

The layouts are those of `glue_data/`, as every GLUE script downloads it, and those of the data's first
publications, where GLUE only divided them anew: MRPC, RTE and STS-B.
"""

from collections.abc import Mapping
from typing import NamedTuple

from bertsmith.benchmarks.glue_scores import ACCURACY, F1, MATTHEWS, PEARSON, SPEARMAN
from bertsmith.benchmarks.official_files import Layouts, OfficialFile

WHERE = "https://gluebenchmark.com/tasks"


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
    """A way of publishing each."""
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

GLUE = (
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
