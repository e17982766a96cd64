"""One multilingual encoder in eleven languages: sentences found, tags learned in one and read in ten, few
rows of Thai, and the vocabulary of two languages.

    python bench/languages/languages.py --model FOLDER [--sentences 1000] [--questions 250] [--arabic FOLDER]

FOLDER is multilingual-e5-small or another encoder of many languages. The data is ../shared/data's `parallel`
(Parallel Universal Dependencies: the same 1,000 sentences in each language, with words and their parts of
speech) and `thai_sentiment` (Wisesight). The first table has a row a language, the second one a row a number
of Thai rows:

    found        of the English sentences, those whose nearest sentence of this language is their translation;
                 by our vectors and by those of sentence-transformers in the same run, and their least cosine
    index        the same by an index of this language (`bertsmith index build --language mul`), asked in
                 English: by vectors alone, by words alone (BM25), and by both, which is the default
    tags         part-of-speech accuracy on the second 500 sentences of this language, after `finetune tagging
                 method=full epochs=4` on the first 500 in English; and each English word's
                 most frequent tag
    Thai         accuracy (macro F1) of `finetune classification` as it comes (all rows: method=linear),
                 beside TF-IDF and the frozen encoder
    banking77    accuracy on the 77 intents of banking77 in English and in five kinds of Arabic, after so many
                 English rows an intent, trained as the Thai ones; beside TF-IDF in English. --arabic names
                 the `data` folder of github.com/SinaLab/ArBanking77 (CC BY-SA 4.0), which is not in
                 ../shared/data; without it this table is left out.

Runs are kept under runs/bench/languages/, and an interrupted table goes on; --again repeats them.
"""

import argparse
import csv
import json
import shutil
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report, serve
from labelled import find, mean_and_error, quiet, run_folder, run_once, when_run

LANGUAGES = ("en", "de", "es", "ru", "tr", "fi", "ar", "hi", "zh", "ko", "th")
LEARNED = {"en": ("en",)}
KEPT_LANGUAGES = ("en", "th")
TAGGED = 500  # sentences to learn from; as many others are read
QUERY, DOCUMENT = "query: ", "passage: "
THAI = ("8", "32", "all")
DRAWS = 3
BANKING = ("8", "all")
ARABIC = {"modern standard Arabic": "MSA", "Palestinian": "PAL"} | {
    name: name for name in ("Saudi", "Tunisian", "Moroccan")
}


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=False, help="a folder with a multilingual encoder")
    parser.add_argument("--sentences", type=int, default=1000, help="of each language, to be found")
    parser.add_argument("--questions", type=int, default=250, help="to each index")
    parser.add_argument("--arabic", help="the data folder of ArBanking77")
    parser.add_argument("--again", action="store_true", help="repeat runs that are kept")
    parser.add_argument("--worker", choices=tuple(SIDES))
    options = parser.parse_args()
    if options.worker:
        serve(quiet(SIDES[options.worker]))
        return
    if options.model is None:
        raise SystemExit("Name a multilingual encoder's folder with --model.")
    model = str(Path(options.model).resolve())

    def asked(side: str, name: str, **request: Any) -> dict[str, Any]:
        return run_once(__file__, side, name, {"model": model, **request}, options.again)

    found = asked("vectors", "vectors", sentences=options.sentences)
    searched = asked("index", "index", questions=options.questions)
    tagged = {name: asked("tags", f"tags-{name}", learned=list(LEARNED[name])) for name in LEARNED}
    pruned = asked("prune", "prune")
    thai = [
        [
            asked("thai", f"thai-{size}-{draw}", size=size, draw=draw)
            for draw in range(DRAWS if size != "all" else 1)
        ]
        for size in THAI
    ]
    banking = [
        asked("banking", f"banking-{size}", size=size, arabic=options.arabic)
        for size in (BANKING if options.arabic else ())
    ]
    answers = [found, searched, *tagged.values(), pruned, *chain(*thai), *banking]
    notes = [
        f"Found: {options.sentences:,} sentences in each language; least cosine of both sides' vectors "
        f"{found['least_cosine']:.6f}.",
        f"Index: {options.questions} English questions to each.",
        f"Tags: {TAGGED} sentences learned, {TAGGED} others read; "
        + "; ".join(f"{name} {answer['seconds']:,.0f} s" for name, answer in tagged.items())
        + ".",
        f"Pruned to {' and '.join(KEPT_LANGUAGES)}: {pruned['pieces_before']:,} → {pruned['pieces']:,} "
        f"pieces, {pruned['parameters_before'] / 1e6:.1f} → {pruned['parameters'] / 1e6:.1f} M parameters; "
        f"vectors of their {pruned['texts']:,} sentences differ by {pruned['difference']:g} at most.",
        when_run(answers),
    ]
    sizes = ("sentences", "questions")
    is_whole = all(getattr(options, name) == parser.get_default(name) for name in sizes)
    variant = "" if is_whole else None  # the folders that are named make no part of it
    report(
        "languages", "One encoder, eleven languages", _rows(found, searched, tagged), notes, variant=variant
    )
    report(
        "languages-thai",
        "Few rows of Thai",
        [_thai_row(*each) for each in zip(THAI, thai, strict=True)],
        notes[-1:],
        variant=variant,
    )
    if banking:
        report(
            "languages-banking77",
            "banking77 in English and Arabic",
            [_banking_row(*each) for each in zip(BANKING, banking, strict=True)],
            notes[-1:],
            variant=variant,
        )


def _rows(found: dict[str, Any], searched: dict[str, Any], tagged: dict[str, Any]) -> list[dict[str, str]]:
    rows = []
    for language in LANGUAGES:
        row = {"language": language}
        row |= {
            f"found, {side}": _percent(found[side].get(language))
            for side in ("ours", "sentence-transformers")
        }
        row |= {
            f"index, {mode}": _percent(searched[mode].get(language)) for mode in ("vector", "text", "hybrid")
        }
        row |= {f"tags from {name}": _percent(tagged[name]["scores"][language]) for name in LEARNED}
        rows.append(row | {"most frequent tag": _percent(tagged["en"]["baselines"][language])})
    return rows


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _thai_row(size: str, answers: Sequence[dict[str, Any]]) -> dict[str, str]:
    row = {"rows a class": size, "trained on": f"{answers[0]['train_rows']:,}"}
    for name in answers[0]["scores"]:
        accuracies, f1_scores = zip(*(answer["scores"][name] for answer in answers), strict=True)
        row[name] = f"{mean_and_error(accuracies)} ({mean_and_error(f1_scores)})"
    methods = sorted({answer["method"] for answer in answers})
    seconds = sum(answer["seconds"] for answer in answers) / len(answers)
    return row | {"method": ", ".join(methods), "seconds": f"{seconds:,.0f}"}


def _banking_row(size: str, answer: dict[str, Any]) -> dict[str, str]:
    row = {"rows an intent": size, "trained on": f"{answer['train_rows']:,}"}
    row |= {name: _percent(accuracy) for name, accuracy in answer["scores"].items()}
    more = {"method": answer["method"], "seconds": f"{answer['seconds']:,.0f}"}
    return row | {"TF-IDF, English": _percent(answer["tfidf"])} | more


# -- the sides -----------------------------------------------------------------------------------------------


def _sentences(language: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in find(f"parallel/{language}.jsonl").read_text("utf-8").splitlines()]


def _texts(language: str) -> list[str]:
    return [row["text"] for row in _sentences(language)]


def find_translations(request: dict[str, Any]) -> dict[str, Any]:
    """The shares found by both sides' vectors, in float32 both."""
    import torch
    from sentence_transformers import SentenceTransformer

    from bertsmith import Embedder

    ours = Embedder(request["model"], compute_dtype=torch.float32, query_prefix=QUERY, document_prefix=QUERY)
    with run_folder(__file__, "vectors", request) as folder:
        # The class that the folder names builds another tokenizer, without tokenizer.json's normaliser.
        shutil.copytree(request["model"], folder / "fast", dirs_exist_ok=True)
        config = folder / "fast" / "tokenizer_config.json"
        config.write_text(
            json.dumps(json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"})
        )
        theirs = SentenceTransformer(str(folder / "fast"), device="cpu").float()
    vectors: dict[str, dict[str, Any]] = {"ours": {}, "sentence-transformers": {}}
    for language in LANGUAGES:
        texts = _texts(language)[: request["sentences"]]
        vectors["ours"][language] = np.asarray(ours.documents(texts))
        vectors["sentence-transformers"][language] = theirs.encode([QUERY + text for text in texts])
    shares = {
        side: {
            language: float(
                np.mean(np.argmax(found["en"] @ found[language].T, axis=1) == np.arange(len(found["en"])))
            )
            for language in LANGUAGES[1:]
        }
        for side, found in vectors.items()
    }
    a, b = (np.concatenate(list(found.values())) for found in vectors.values())
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return shares | {"least_cosine": float(cosines.min())}


def search_indexes(request: dict[str, Any]) -> dict[str, Any]:
    """The shares found first by an index of each language, by each mode."""
    from bertsmith import Embedder, Index
    from bertsmith.inference.index.search import IndexQuery

    embedder = Embedder(request["model"], query_prefix=QUERY, document_prefix=DOCUMENT)
    questions = _texts("en")[: request["questions"]]
    vectors = embedder.queries(questions)
    shares: dict[str, Any] = {mode: {} for mode in ("vector", "text", "hybrid")}
    with run_folder(__file__, "index", request) as folder:
        for language in LANGUAGES[1:]:
            rows = [{"id": str(number), "text": text} for number, text in enumerate(_texts(language))]
            source, out = folder / f"{language}.jsonl", folder / language
            source.write_text("".join(json.dumps(row) + "\n" for row in rows))
            shutil.rmtree(out, ignore_errors=True)
            index = Index.build([source], out, embedder=embedder, passages={"language": "mul"})
            for mode, of_mode in shares.items():
                right = 0
                for number, (question, vector) in enumerate(zip(questions, vectors, strict=True)):
                    hits = index.find(IndexQuery(question, vector, 1, mode, None, True))
                    right += [hit.document_id for hit in hits] == [str(number)]
                of_mode[language] = right / len(questions)
    return shares


def learn_tags(request: dict[str, Any]) -> dict[str, Any]:
    """Accuracy in every language after learning from some, and that of the most frequent tag of each word."""
    from bertsmith import Predictor, finetune, prune_vocabulary

    with run_folder(__file__, "tags", request) as folder:
        texts = [
            text
            for language in LANGUAGES
            for row in _sentences(language)
            for text in (row["text"], *row["words"])
        ]
        shutil.rmtree(folder / "pruned", ignore_errors=True)  # a smaller table learns faster, and as well
        pruned = prune_vocabulary(request["model"], texts, folder / "pruned")
        languages = request["learned"]
        learned = [
            row
            for number, language in enumerate(languages)
            for row in _sentences(language)[:TAGGED][number :: len(languages)]
        ]
        _write_tagged(folder / "train.txt", learned)
        begun = time.perf_counter()
        shutil.rmtree(folder / "run", ignore_errors=True)
        run = finetune(
            "tagging",
            *("method=full", "epochs=4"),
            model=str(pruned.folder),
            train=str(folder / "train.txt"),
            out=str(folder / "run"),
        )
        seconds = time.perf_counter() - begun
        predictor = Predictor.load(run.model)
        scores, baselines = {}, {}
        for language in LANGUAGES:
            others = _sentences(language)[TAGGED:]
            evaluation = predictor.evaluate(str(_write_tagged(folder / f"{language}.txt", others)))
            scores[language] = evaluation.model["accuracy"]
            baselines[language] = _most_frequent_tag(learned, others)
    return {"scores": scores, "baselines": baselines, "seconds": seconds, "train_rows": len(learned)}


def _write_tagged(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    blocks = ("\n".join(map("\t".join, zip(row["words"], row["upos"], strict=True))) for row in rows)
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def _most_frequent_tag(learned: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> float:
    from collections import Counter, defaultdict

    of_word: dict[str, Counter[str]] = defaultdict(Counter)
    for row in learned:
        for word, tag in zip(row["words"], row["upos"], strict=True):
            of_word[word][tag] += 1
    (usual, _), *_ = sum(of_word.values(), Counter[str]()).most_common(1)
    pairs = [pair for row in others for pair in zip(row["words"], row["upos"], strict=True)]
    guessed = [of_word[word].most_common(1)[0][0] if word in of_word else usual for word, _ in pairs]
    return sum(guess == tag for guess, (_, tag) in zip(guessed, pairs, strict=True)) / len(pairs)


def prune(request: dict[str, Any]) -> dict[str, Any]:
    """Sizes before and after, and the greatest difference of a number in the vectors."""
    import torch

    from bertsmith import Embedder, prune_vocabulary

    texts = [QUERY + text for language in KEPT_LANGUAGES for text in _texts(language)]
    with run_folder(__file__, "prune", request) as folder:
        shutil.rmtree(folder / "pruned", ignore_errors=True)
        pruned = prune_vocabulary(request["model"], texts, folder / "pruned")
        whole, small = (
            np.asarray(Embedder(str(model), compute_dtype=torch.float32).documents(texts))
            for model in (request["model"], pruned.folder)
        )
    sizes = ("pieces_before", "pieces", "parameters_before", "parameters")
    return {name: getattr(pruned, name) for name in sizes} | {
        "texts": len(texts),
        "difference": float(np.abs(whole - small).max()),
    }


def learn_thai(request: dict[str, Any]) -> dict[str, Any]:
    """`finetune classification` as it comes, on rows drawn by a seed, measured on test once."""
    from random import Random

    from bertsmith import finetune
    from bertsmith.tasks.heads.linear_start import FROZEN

    with run_folder(__file__, "thai", request) as folder:
        lines = find("thai_sentiment/train.jsonl").read_text("utf-8").splitlines()
        if request["size"] != "all":
            Random(request["draw"]).shuffle(lines)
            of_class: dict[str, list[str]] = {}
            for line in lines:
                of_class.setdefault(json.loads(line)["label"], []).append(line)
            lines = [line for rows in of_class.values() for line in rows[: int(request["size"])]]
        train = folder / "train.jsonl"
        train.write_text("\n".join(lines) + "\n", encoding="utf-8")
        shutil.rmtree(folder / "run", ignore_errors=True)
        settings = [f"seed={request['draw']}", *(["method=linear"] if request["size"] == "all" else [])]
        test = str(find("thai_sentiment/test.jsonl"))
        begun = time.perf_counter()
        run = finetune(
            "classification",
            *settings,
            model=request["model"],
            train=str(train),
            test=test,
            out=str(folder / "run"),
        )
        seconds = time.perf_counter() - begun
    side = run.results.evaluations["test"]
    known = {"ours": side.model, **side.baselines}
    known.setdefault(FROZEN, side.model)  # where that is the method
    return {
        "scores": {name: [metrics["accuracy"], metrics["macro_f1"]] for name, metrics in known.items()},
        "method": run.results.method,
        "seconds": seconds,
        "train_rows": len(lines),
    }


def learn_banking(request: dict[str, Any]) -> dict[str, Any]:
    """`finetune classification` on English rows, asked in English and Arabic."""
    from random import Random

    from bertsmith import Predictor, finetune

    folder_of_arabic = Path(request["arabic"])
    names = {
        row["label_ar"]: row["label_en"].replace(" ", "_")
        for row in _read_table(folder_of_arabic / "Banking77_intents.csv")
    }
    rows, test = (
        [(row["text"], row["category"]) for row in _read_table(find(f"banking77/{part}.csv"))]
        for part in ("train", "test")
    )
    tests = {"English": test}
    for kind, part in ARABIC.items():
        arabic = _read_table(folder_of_arabic / f"Banking77_Arabized_{part}_test.csv")
        tests[kind] = [(row["text"], names[row["label"]]) for row in arabic]
    if request["size"] != "all":
        Random(0).shuffle(rows)
        of_intent: dict[str, list[tuple[str, str]]] = {}
        for row in rows:
            of_intent.setdefault(row[1], []).append(row)
        rows = [row for intent_rows in of_intent.values() for row in intent_rows[: int(request["size"])]]
    with run_folder(__file__, "banking", request) as folder:
        for name, content in (("train", rows), ("test", test)):
            lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in content)
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        shutil.rmtree(folder / "run", ignore_errors=True)
        begun = time.perf_counter()
        run = finetune(
            "classification",
            *(["method=linear"] if request["size"] == "all" else []),
            model=request["model"],
            train=str(folder / "train.jsonl"),
            test=str(folder / "test.jsonl"),
            out=str(folder / "run"),
        )
        seconds = time.perf_counter() - begun
        predictor = Predictor.load(run.model)
        scores = {}
        for kind, content in tests.items():
            answers = predictor.predict([text for text, _ in content])
            right = [answer["label"] == label for answer, (_, label) in zip(answers, content, strict=True)]
            scores[kind] = sum(right) / len(right)
    baselines = run.results.evaluations["test"].baselines
    return {
        "scores": scores,
        "tfidf": next(metrics["accuracy"] for name, metrics in baselines.items() if "TF-IDF" in name),
        "method": run.results.method,
        "seconds": seconds,
        "train_rows": len(rows),
    }


def _read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


SIDES = {
    "vectors": find_translations,
    "index": search_indexes,
    "tags": learn_tags,
    "prune": prune,
    "thai": learn_thai,
    "banking": learn_banking,
}

if __name__ == "__main__":
    main()
