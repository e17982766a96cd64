"""What Bertsmith gives, as digests: whoever moves its code shows with them that nothing else changed.

    python tests/golden/digests.py before.json      on the tree as it was
    python tests/golden/digests.py after.json       on the tree as it is
    python tests/golden/digests.py --compare before.json after.json

Both on one machine with one torch: weights and vectors are compared to the bit, and another processor rounds
otherwise. It goes through the commands and public names alone, so that files may move behind them, and takes
some four minutes of one core.
"""

import contextlib
import hashlib
import inspect
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx
import numpy as np
import pyarrow.parquet as pq
import safetensors.numpy
import torch

import bertsmith
from bertsmith.__main__ import main

Digests = dict[str, str]
HERE = ("hardware.threads=1", "hardware.device=cpu", "hardware.precision=float32")
TASKS = {
    "classification": ("label",),
    "multi-label": ("labels",),
    "regression": ("label",),
    "similarity": ("score",),
    "tagging": (),
    "question-answering": (),
    "retrieval": (),
    "reranking": ("label",),
}
# What differs from run to run: times, places, versions of files written, and what the machine was like.
UNSTABLE = re.compile(
    r"seconds|time|began|ended|created|date|path|folder|version|host|machine|hardware|speed|per_second|memory|"
    r"flops|provenance|command|log|file|uuid|revision|commit|id$|out$|store$|hours|minutes|written|python|cpu|elapsed|mfu|^at$|^student$"
)

SYLLABLES = [first + second for first in "bdfgklmnprst" for second in ("a", "e", "i", "o", "u")]
DRAW = random.Random(7)
WORDS = ["".join(DRAW.choices(SYLLABLES, k=DRAW.choice((1, 2, 2, 3)))) for _ in range(240)]
SIGNS = {"red": "colour", "blue": "colour", "cat": "animal", "dog": "animal", "oak": "tree", "elm": "tree"}


# What it learns from --------------------------------------------------------------------------------------


def words(draw: random.Random, most: int = 9) -> tuple[list[str], int, str]:
    """A sentence, the place of the word that tells its label, and that word."""
    chosen = draw.choices(WORDS, k=draw.randint(3, most))
    place, sign = draw.randrange(len(chosen)), draw.choice(list(SIGNS))
    chosen[place] = sign
    return chosen, place, sign


def row_of(task: str, draw: random.Random) -> dict[str, Any]:
    """One labelled row."""
    (chosen, place, sign), (others, _, other) = words(draw), words(draw)
    text, second = " ".join(chosen), " ".join(others)
    match task:
        case "classification":
            return {"text": text, "label": SIGNS[sign]}
        case "multi-label":
            return {"text": text, "labels": [SIGNS[sign], sign]}
        case "regression":
            return {"text": text, "label": 10.0 * list(SIGNS).index(sign) + len(chosen)}
        case "similarity":
            return {"text1": text, "text2": second, "score": 5.0 if SIGNS[sign] == SIGNS[other] else 1.0}
        case "tagging":
            tags = ["B-" + SIGNS[sign].upper() if at == place else "O" for at in range(len(chosen))]
            return {"words": chosen, "tags": tags}
        case "question-answering":
            return {"question": "where is it", "passage": text, "answer": sign}
        case "retrieval":
            return {"query": f"{sign} {chosen[0]}", "document": text}
        case _:
            return {"query": sign, "document": second, "label": int(SIGNS[sign] == SIGNS[other])}


def write_rows(path: Path, task: str, count: int, seed: int) -> str:
    """Rows of a task as JSON lines."""
    draw = random.Random(f"{task} {seed}")
    path.write_text("".join(json.dumps(row_of(task, draw)) + "\n" for _ in range(count)))
    return str(path)


def write_documents(path: Path, count: int) -> str:
    """Documents of two to six sentences, a blank line between them."""
    draw = random.Random(3)
    documents = [
        "\n".join(" ".join(words(draw)[0]).capitalize() + "." for _ in range(draw.randint(2, 6)))
        for _ in range(count)
    ]
    path.write_text("\n\n".join(documents) + "\n")
    return str(path)


def write_calls(path: Path, count: int) -> str:
    """Calls of a chat model that names a text's kind, wrong in one of fifty."""
    draw, schema = random.Random(5), {
        "type": "json_schema",
        "json_schema": {
            "name": "kind",
            "schema": {
                "type": "object",
                "properties": {"kind": {"type": "string", "enum": sorted(set(SIGNS.values()))}},
                "required": ["kind"],
            },
        },
    }  # fmt: skip
    with path.open("w") as lines:
        for number in range(count):
            chosen, _, sign = words(draw)
            kind = SIGNS[sign] if draw.random() > 0.02 else draw.choice(sorted(set(SIGNS.values())))
            request = {
                "model": "m",
                "messages": [
                    {"role": "system", "content": "Say which kind it is."},
                    {"role": "user", "content": " ".join(chosen)},
                ],
                "response_format": schema,
            }
            response = {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion",
                "created": 1_760_000_000 + number,
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": json.dumps({"kind": kind})},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
            }
            lines.write(json.dumps({"request": request, "response": response}) + "\n")
    return str(path)


# Digests --------------------------------------------------------------------------------------------------


def digest(data: bytes | str) -> str:
    """Sixteen hexadecimal digits of SHA-256, wherever it lived."""
    data = data.encode() if isinstance(data, str) else data
    return hashlib.sha256(data.replace(tempfile.gettempdir().encode(), b"")).hexdigest()[:16]


def of_arrays(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Of names, types, shapes and bytes, in the order of the names."""
    hashed = hashlib.sha256()
    for name, array in sorted(arrays):
        hashed.update(f"{name} {array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:16]


def of_weights(folder: Path) -> str:
    """Of every tensor under a folder."""
    tensors = []
    for file in sorted(folder.rglob("*.safetensors")):
        loaded = safetensors.numpy.load_file(file)
        tensors += [(f"{file.relative_to(folder)}:{name}", array) for name, array in loaded.items()]
    assert tensors, folder
    return of_arrays(tensors)


def stable(value: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(value, dict):
        return {key: stable(each) for key, each in value.items() if not UNSTABLE.search(key.lower())}
    return [stable(each) for each in value] if isinstance(value, list) else value


def of_json(path: Path) -> str:
    """Of a JSON file, or of JSON lines."""
    text = path.read_text()
    try:
        values: Any = json.loads(text)
    except json.JSONDecodeError:
        values = [json.loads(line) for line in text.splitlines()]
    return digest(json.dumps(stable(values), sort_keys=True))


def run(*arguments: str | Path) -> str:
    """A command's standard output; it has to succeed."""
    out, err = io.StringIO(), io.StringIO()
    words = ["bertsmith", *map(str, arguments)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch("sys.argv", words):
        status = main()
    if status:
        raise SystemExit(f"bertsmith {' '.join(map(str, arguments))}\n{err.getvalue()}{out.getvalue()}")
    return out.getvalue()


# Its life -------------------------------------------------------------------------------------------------


def from_text_to_a_model(here: Path) -> Digests:
    """Corpus, vocabulary, token store, order of batches and 30 steps of pre-training by three recipes."""
    found = {}
    run(
        "corpus",
        "build",
        write_documents(here / "texts.txt", 500),
        "--out",
        here / "corpus",
        "--heldout",
        "0.1",
    )
    for file in sorted((here / "corpus").rglob("*.parquet")):
        table = pq.read_table(file).to_pydict()
        found[f"corpus {file.relative_to(here / 'corpus')}"] = digest(json.dumps(table, default=str))
    run("tokenizer", "train", here / "corpus", "--vocab-size", "400", "--out", here / "tokenizer")
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        found[f"tokenizer {name}"] = digest((here / "tokenizer" / name).read_bytes())
    small = (
        *("model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2"),
        *("model.intermediate_size=64", "model.max_position_embeddings=64", "optimizer.warmup=0.1"),
        *(
            "data.batch_size=16",
            "data.sequence_lengths=[32]",
            "data.sequence_shares=[1.0]",
            "steps=30",
            "seed=3",
        ),
    )
    places = (f"corpus={here / 'corpus'}", f"tokenizer={here / 'tokenizer'}")
    for recipe, more in (
        ("quickstart", ()),
        ("bert-base", ("data.next_sentence=true",)),
        ("electra-small", ()),
    ):
        out = here / f"pretrained-{recipe}"
        run("pretrain", recipe, *places, *small, *more, *HERE, f"out={out}")
        found[f"pretrain {recipe} weights"] = of_weights(out / "model")
        found[f"pretrain {recipe} log"] = of_json(out / "log.jsonl")
    return found


def every_head(here: Path) -> Digests:
    """Weights, figures and predictions of each task; of few rows, and what `suggest` makes of a model."""
    found, encoder = {}, here / "pretrained-bert-base" / "model"
    for task in TASKS:
        train, dev, test = (
            write_rows(here / f"{task}-{part}.jsonl", task, rows, seed)
            for seed, (part, rows) in enumerate((("train", 120), ("dev", 60), ("test", 60)))
        )
        out = here / task
        run("finetune", task, "--model", encoder, "--train", train, "--dev", dev, "--test", test,
            "--out", out, "epochs=2", "batch_size=16", "max_length=32", "method=full", "seed=1",
            *HERE)  # fmt: skip
        found[f"{task} weights"] = of_weights(out / "model")
        found[f"{task} results"] = of_json(out / "results.json")
        for file in sorted((out / "predictions").iterdir()):
            found[f"{task} {file.name}"] = digest(file.read_bytes())
        for dtype in ("float32", "int16"):
            run(
                "predict",
                out / "model",
                test,
                "--out",
                here / "said.jsonl",
                "--overwrite",
                "--compute-dtype",
                dtype,
            )
            found[f"{task} predict {dtype}"] = digest((here / "said.jsonl").read_bytes())
        found[f"{task} evaluate"] = digest(
            json.dumps(stable(json.loads(run("evaluate", out / "model", test, "--json"))))
        )
    rows = write_rows(here / "few.jsonl", "classification", 48, 9)
    run("finetune", "classification", "--model", encoder, "--train", rows, "--out", here / "few",
        "max_length=32", "seed=2", "minutes=1", *HERE)  # fmt: skip
    found["few rows weights"] = of_weights(here / "few" / "model")
    found["few rows results"] = of_json(here / "few" / "results.json")
    mixed = Path(write_rows(here / "mixed.jsonl", "classification", 80, 11))
    rows_of_it = [json.loads(line) for line in mixed.read_text().splitlines()]
    for row in rows_of_it[::2]:
        row["label"] = None
    mixed.write_text("".join(json.dumps(row) + "\n" for row in rows_of_it))
    run("suggest", here / "classification" / "model", mixed, "--out", here / "suggested", "--count", "20")
    for name in ("rows.csv", "labels.csv"):
        found[f"suggest {name}"] = digest((here / "suggested" / name).read_bytes())
    return found


def vectors_and_search(here: Path) -> Digests:
    """Vectors in each precision, an index and what is found in it."""
    found, model = {}, here / "retrieval" / "model"
    texts = here / "lines.txt"
    texts.write_text("".join(" ".join(words(random.Random(number))[0]) + "\n" for number in range(200)))
    for dtype in ("float32", "int16", "bfloat16"):
        run("embed", model, texts, "--out", here / "v.parquet", "--overwrite", "--compute-dtype", dtype)
        table = pq.read_table(here / "v.parquet")
        found[f"embed {dtype}"] = digest(np.array(table["vector"].to_pylist(), np.float32).tobytes())
    documents = here / "documents.jsonl"
    documents.write_text(
        "".join(
            json.dumps({"id": f"d{number}", "text": line}) + "\n"
            for number, line in enumerate(texts.read_text().splitlines())
        )
    )
    run("index", "build", documents, "--model", model, "--out", here / "index")
    for mode in ("hybrid", "vector", "text"):
        hits = run("search", here / "index", "red oak and " + WORDS[0], "--mode", mode, "--json", "--k", "20")
        found[f"search {mode}"] = digest(json.dumps([stable(json.loads(line)) for line in hits.splitlines()]))
    return found


def smaller_and_elsewhere(here: Path) -> Digests:
    """Distilled and shrunk models, an exported graph's answers."""
    found, model = {}, here / "classification" / "model"
    train, dev, test = (here / f"classification-{part}.jsonl" for part in ("train", "dev", "test"))
    run("distil", model, "--train", train, "--dev", dev, "--out", here / "small", "layers=1" , "epochs=2",
        "compare=false", *HERE)  # fmt: skip
    found["distil weights"] = of_weights(here / "small" / "model")
    run(
        "distil",
        here / "retrieval" / "model",
        "--static",
        "--texts",
        here / "texts.txt",
        "--out",
        here / "table",
    )
    found["distil static weights"] = of_weights(here / "table")
    run(
        "shrink",
        model,
        "--train",
        train,
        "--dev",
        dev,
        "--out",
        here / "shrunk",
        "--keep",
        "0.5",
        "epochs=1",
        *HERE,
    )
    found["shrink weights"] = of_weights(here / "shrunk" / "model")
    run("distil", here / "pretrained-bert-base" / "model", "--corpus", here / "corpus", "--out",
        here / "small-encoder", "steps=10", "layers=1", "width=16", "data.batch_size=16",
        "data.sequence_length=32", "seed=4", *HERE)  # fmt: skip
    found["distil encoder weights"] = of_weights(here / "small-encoder" / "model")
    run("export", model, "--gate", test, "--out", here / "exported")
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(
        next((here / "exported").glob("*.onnx")), providers=["CPUExecutionProvider"]
    )
    ids = np.arange(5, 17, dtype=np.int64)[None]
    given = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    asked = {each.name: given[each.name] for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    found["export outputs"] = of_arrays(zip(names, session.run(None, asked), strict=True))
    return found


def a_mirrors_life(here: Path) -> Digests:
    """Two thousand calls: what is recorded, learned and proven of them."""
    store = ("--store", str(here / "calls.sqlite"))
    found = {
        "mirror import": digest(run("mirror", "import", write_calls(here / "calls.jsonl", 2000), *store))
    }
    learned = run("mirror", "train", "--tiers", "tf-idf", "--out", here / "student", "--json", *store)
    found["mirror train"] = digest(json.dumps(stable(json.loads(learned)), sort_keys=True))
    found["mirror student"] = of_weights(here / "student")
    found["mirror status"] = digest(json.dumps(stable(json.loads(run("mirror", "status", "--json", *store)))))
    return found


def the_service(here: Path) -> Digests:
    """Its published schema, and the answer of every route that is asked with a text."""
    named = [f"{task}={here / task / 'model'}" for task in TASKS]
    command = [sys.executable, "-m", "bertsmith", "serve", *named, "--port", "0"]
    found = {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = (json.loads(line) for line in process.stderr if line.startswith("{"))
            address = next(line["address"] for line in lines if "address" in line)
            threading.Thread(target=process.stderr.read, daemon=True).start()  # or its pipe fills
            with httpx.Client(base_url=address, timeout=60) as client:
                schema = client.get("/openapi.json").json()
                found["openapi"] = digest(json.dumps(schema, sort_keys=True))
                for place, methods in places(schema):
                    answers = [
                        client.request(method, place, json=body)
                        for method in methods
                        for body in (BODIES if method == "post" else (None,))
                    ]
                    said = [(answer.status_code, stable_body(answer)) for answer in answers]
                    found[f"route {place}"] = digest(json.dumps(said, sort_keys=True))
        finally:
            process.terminate()
    return found


TEXT, SECOND = f"red oak {WORDS[1]}", f"the dog {WORDS[2]}"
BODIES: tuple[Any, ...] = (
    {"inputs": TEXT},
    {"inputs": [TEXT, SECOND]},
    {"inputs": {"text1": TEXT, "text2": SECOND}},
    {"input": TEXT, "model": "retrieval"},
    {"query": TEXT, "documents": [TEXT, SECOND], "model": "reranking"},
    {"query": TEXT, "texts": [TEXT, SECOND]},
    {"question": TEXT, "context": SECOND},
    {"nonsense": 1},
)


def places(schema: Any) -> Iterator[tuple[str, list[str]]]:
    """Paths for each model, with the methods to ask them by; not of what counts and what changes models."""
    for path, methods in sorted(schema["paths"].items()):
        if any(word in path for word in ("metrics", "admin", "health")):
            continue
        for model in TASKS if "{" in path else ("",):
            yield re.sub(r"\{\w+\}", model, path), sorted({"get", "post"} & set(methods))


def stable_body(answer: Any) -> Any:
    """A body without ids and times."""
    try:
        return stable(answer.json())
    except ValueError:
        return digest(answer.content)


def commands(_: Path) -> Digests:
    """The help of every command."""
    found, waiting = {}, list[tuple[str, ...]]([()])
    while waiting:
        path = waiting.pop()
        shown = run(*path, "--help")
        found[f"--help {' '.join(path)}"] = digest(shown)
        if f"Usage: bertsmith {' '.join([*path, 'COMMAND'])}" in " ".join(shown.split()):
            for line in shown.splitlines():
                if name := re.match(r"│ ([a-z-]+)  +\S", line):
                    waiting.append((*path, name[1]))
    return found


def public_names(_: Path) -> Digests:
    """Every name that `import bertsmith` promises, with its signature and those of its methods."""
    found = {}
    for name in dir(bertsmith):
        value = getattr(bertsmith, name)
        members = [("", value)]
        if inspect.isclass(value):
            members += [
                (f".{key}", each) for key, each in inspect.getmembers(value) if not key.startswith("_")
            ]
        for key, member in members:
            try:
                found[f"public {name}{key}"] = str(inspect.signature(member)).replace("bertsmith.", "")
            except (TypeError, ValueError):
                found[f"public {name}{key}"] = type(member).__name__
    address_or_module = re.compile(r" at 0x[0-9a-f]+|\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
    return {name: address_or_module.sub("", said) for name, said in found.items()}


STORY: tuple[Callable[[Path], Digests], ...] = (
    public_names, commands, from_text_to_a_model, every_head, vectors_and_search, smaller_and_elsewhere,
    a_mirrors_life, the_service,
)  # fmt: skip


def compare(before: Path, after: Path) -> int:
    """Shows what differs."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    differs = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    for name in differs:
        print(f"{name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}")
    print(f"{len(old)} before, {len(new)} after, {len(differs)} differ")
    return int(bool(differs))


def write(out: Path) -> int:
    """Lives it, and writes what came out."""
    torch.set_num_threads(1)
    found: Digests = {}
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        for part in STORY:
            found |= part(Path(folder))
            print(f"{part.__name__}: {len(found)} digests so far", file=sys.stderr)
    out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--compare"]:
        sys.exit(compare(*map(Path, arguments[1:])))
    sys.exit(write(Path(*arguments)))
