"""Learning a Unigram vocabulary, beside SentencePiece on the same sentences: seconds, memory, pieces a word.

    pip install --target runs/peers/sentencepiece sentencepiece
    python bench/text/unigram.py [DATA]

DATA is ../shared/data. English: wikipedia_2014 (92 MB of sentences), measured on the 1,000 English sentences
of parallel; Thai: thai_sentiment (5 MB), measured on the Thai ones. Words are those that parallel names, in
Thai too. Both have two cores, NFKC, a coverage of 0.9995, and everything else by default. Ours reads the
corpus, learns and writes its report; theirs learns.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from tokenizers import Tokenizer

from bertsmith.text.corpus.corpus import Corpus
from corpus import measure
from harness import report

_DATA = Path(__file__).parents[3] / "shared" / "data"
_PEER = Path(__file__).parents[2] / "runs" / "peers" / "sentencepiece"
_LEARN = """
import resource, sys, time
sys.path.insert(0, sys.argv[1])
import sentencepiece
started = time.monotonic()
sentencepiece.SentencePieceTrainer.train(
    input=sys.argv[2], model_prefix=sys.argv[3], vocab_size=int(sys.argv[4]), model_type="unigram",
    num_threads=2, character_coverage=0.9995, normalization_rule_name="nfkc", max_sentence_length=1 << 20,
    minloglevel=1
)
print(time.monotonic() - started, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
_COUNT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[2])
print(sum(map(len, model.encode(json.load(sys.stdin)))))
"""


def main() -> None:
    """Both languages, both sides."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", type=Path, default=_DATA)
    data = parser.parse_args().data
    with tempfile.TemporaryDirectory() as folder:
        messages = (" ".join(row["text"].split()) for row in _read(data / "thai_sentiment" / "train.jsonl"))
        (Path(folder) / "thai.txt").write_text("\n\n".join(messages), encoding="utf-8")
        sources = {
            "English": (data / "wikipedia_2014", "en", 30_522, []),
            "Thai": (Path(folder) / "thai.txt", "th", 8_000, ["--language", "th", "--format", "blank-lines"]),
        }
        rows = []
        for name, (source, code, size, options) in sources.items():
            corpus, tokenizer, text = (f"{folder}/{name}-{part}" for part in ("corpus", "ours", "text"))
            measure("corpus build", str(source), "--out", corpus, *options)
            arguments = (corpus, "--kind", "unigram", "--vocab-size", str(size), "--out", tokenizer)
            seconds, peak = measure("tokenizer train", *arguments)
            with Path(text).open("w", encoding="utf-8") as file:
                for document in Corpus.open(corpus).documents("train"):
                    file.writelines(f"{sentence}\n" for sentence in document.sentences)
            learned = _run(_LEARN, text, f"{folder}/{name}", str(size)).split()
            parallel = _read(data / "parallel" / f"{code}.jsonl")
            sentences, words = [row["text"] for row in parallel], sum(len(row["words"]) for row in parallel)
            ours = Tokenizer.from_file(f"{tokenizer}/tokenizer.json").encode_batch(
                sentences, add_special_tokens=False
            )
            our_pieces = sum(len(encoding.ids) for encoding in ours)
            their_pieces = int(_run(_COUNT, f"{folder}/{name}.model", read=json.dumps(sentences)))
            rows += [
                _row(name, "Bertsmith", size, seconds, peak, our_pieces / words),
                _row(name, "SentencePiece", size, float(learned[0]), int(learned[1]), their_pieces / words),
            ]
    report("unigram", "Learning a Unigram vocabulary", rows)


def _row(text: str, side: str, size: int, seconds: float, peak: int, pieces: float) -> dict[str, str]:
    return {
        "text": text,
        "trainer": side,
        "pieces": f"{size:,}",
        "seconds": f"{seconds:.1f}",
        "peak MB": str(peak // 10**6),
        "pieces per word": f"{pieces:.4f}",
    }


def _run(code: str, *arguments: str, read: str | None = None) -> str:
    command = [sys.executable, "-c", code, str(_PEER), *arguments]
    return subprocess.run(command, input=read, check=True, capture_output=True, text=True).stdout


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


if __name__ == "__main__":
    main()
