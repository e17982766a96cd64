"""A text of any length: its windows are computed part by part, in bounded memory, to the same outputs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_tasks import LONG, NAMES, WORDS, examples_of, make_task, random_model, split_of

from bertsmith.data.batch import PackedBatch
from bertsmith.tasks import task_model
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.finetuning import few_at_a_time
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

POOLED = [
    *[(name, {}) for name in NAMES],
    *[("classification", {"pooling": pooling}) for pooling in ("mean", "cls", "max", "published")],
    *[("retrieval", {"pooling": pooling}) for pooling in ("cls", "max")],
    ("similarity", {"target": "class"}),
]


@pytest.mark.parametrize(("name", "settings"), POOLED)
def test_parts_of_an_example_give_what_all_of_it_gives(
    name: str, settings: dict[str, str], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(name, **LONG, **settings)
    examples = examples_of(task, WORDS, longest=120)
    model, split = random_model(task, tokenizer), split_of(task, examples, tokenizer)
    whole = outputs_of(model, split.encoded)
    largest, forward = list[int](), TaskModel.states

    def watched(model: TaskModel, batch: PackedBatch, layout: Layout) -> object:
        largest.append(max(each.tokens for each in layout.encoded))
        return forward(model, batch, layout)

    monkeypatch.setattr(task_model, "LONGEST", 40)
    monkeypatch.setattr(TaskModel, "states", watched)
    told = list[tuple[int, int | None, str]]()
    parts = outputs_of(model, split.encoded, progress=lambda *said: told.append(said))
    assert max(largest) <= 40 < max(each.tokens for each in split.encoded)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one[: len(other)], other, atol=2e-5)
    total = sum(each.tokens for each in split.encoded)
    assert told[-1] == (total, total, "tokens")
    assert [done for done, _, _ in told] == sorted({done for done, _, _ in told})


def test_examples_are_taken_few_at_a_time() -> None:
    task = make_task("classification")
    examples = [task.example("x" * length) for length in (1, 9, 30, 2, 2, 2, 2, 10)]
    taken = [
        [len(each.text) for each in some] for some in few_at_a_time(task, examples, most=3, characters=10)
    ]
    assert taken == [[1, 9], [30], [2, 2, 2], [2], [10]]
    assert list(few_at_a_time(task, [], 3, 10)) == []


PREDICT = """
import sys
import numpy as np
from pathlib import Path
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.text.tokens.tokenizer import Tokenizer
from small_tasks import WORDS, examples_of, make_task, random_model

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

name, megabytes, stride = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
tokenizer = Tokenizer.from_pieces(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", "##s"], lowercase=True
)
task = make_task(name, max_length=64, stride=stride or None)
examples_of(task, WORDS)
if name == "tagging":
    task.labels = ("NN", "VB", "DT")  # entities would be most of what is measured: a dict each
save_task_model(Path(sys.argv[4]), random_model(task, tokenizer), task, tokenizer, {})
predictor = Predictor.load(sys.argv[4])
text = "bano delo firu guma " * int(megabytes * 1e6 / 20)
given = ["delo firu?", text] if name == "question-answering" else text
short = text[:200_000]  # what any prediction takes is taken then
predictor.predict([[given[0], short] if name == "question-answering" else short])
before = peak()
predictor.predict([given])
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
@pytest.mark.parametrize(
    ("name", "megabytes", "stride", "ceiling"),
    [
        pytest.param("question-answering", 4, 8, 14, marks=pytest.mark.slow),
        pytest.param("classification", 4, 8, 10, marks=pytest.mark.slow),  # 7 as a rule, 8 if busy
        pytest.param("classification", 10, 0, 1, marks=pytest.mark.slow),
        pytest.param("tagging", 1, 8, 80, marks=pytest.mark.slow),
    ],
)
def test_a_long_field_is_predicted_in_little_memory(
    tmp_path: Path, name: str, megabytes: float, stride: int, ceiling: int
) -> None:
    """`ceiling` in bytes for each character, the prediction itself included."""
    command = [sys.executable, "-c", PREDICT, name, str(megabytes), str(stride), str(tmp_path / "model")]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=300
    )
    assert int(done.stdout) < ceiling * megabytes * 1e6
