"""Peers of the mirror's learning, each in an environment of its own (`make peers`): what they answer.

    runs/peers/tracer/bin/python bench/mirror/mirror_peers.py tracer FOLDER
    runs/peers/stuntd/bin/python bench/mirror/mirror_peers.py stuntd FOLDER

FOLDER has asked.json: the `calls` as [text, label], the `texts` to answer, the `labels`, the `agreement` that
is wanted, a `seed`, and MiniLM's folder, `encoder`; and the vectors of calls and texts, calls.npy and
texts.npy. answers.json is written there: `labels`, which are `answered`, and each `confidence`, or null.

    tracer     tracer-llm's fit on MiniLM's vectors, without its gradient boosting, which takes hours with 77
               classes
    stuntd     stuntd's own training of a linear head on frozen MiniLM, the encoder being a local folder; its
               gates by confidence and by novelty as they come
"""

import json
import sys
from pathlib import Path
from typing import Any

SITE = "intents"


def main() -> None:
    """Nothing of ours is in these environments."""
    name, place = sys.argv[1], Path(sys.argv[2])
    asked = json.loads((place / "asked.json").read_text())
    answers = {"tracer": tracer, "stuntd": stuntd}[name](place, asked)
    (place / "answers.json").write_text(json.dumps(answers))


def tracer(place: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """It divides the calls itself, and says nothing of how sure it is."""
    import numpy as np
    import tracer as package

    lines = [json.dumps({"input": text, "teacher": label}) + "\n" for text, label in asked["calls"]]
    (place / "traces.jsonl").write_text("".join(lines))
    config = package.FitConfig(
        target_teacher_agreement=asked["agreement"],
        seed=42 + asked["seed"],
        verbose=False,
        skip_candidates=("gbt",),
    )
    fitted = package.fit(place / "traces.jsonl", place / "fitted", np.load(place / "calls.npy"), config)
    count = len(asked["texts"])
    if fitted.manifest.selected_method is None:
        return {"labels": [""] * count, "answered": [False] * count, "confidence": None}
    found = package.load_router(place / "fitted").predict_batch(np.load(place / "texts.npy"))
    handled = [bool(each) for each in found["handled"]]
    return {"labels": [label or "" for label in found["labels"]], "answered": handled, "confidence": None}


def stuntd(place: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Its captures, as its proxy would have made them; trained, and asked one text after the other."""
    from stuntd.serve.pooled import PooledDecider
    from stuntd.settings import Settings
    from stuntd.store.db import Capture, Store
    from stuntd.store.redact import Redactor
    from stuntd.train.artifacts import HEAD_FILE, site_dir
    from stuntd.train.encoders import resolve_encoder
    from stuntd.train.pooled import PooledTrainer
    from stuntd.train.run import train_sites

    settings = Settings(
        encoder=asked["encoder"], target_agreement=asked["agreement"], models_dir=place / "models"
    )
    intent = {"type": "string", "enum": asked["labels"]}
    schema = json.dumps({"type": "object", "properties": {"intent": intent}})
    store = Store(place / "captures.sqlite", Redactor())
    for text, label in asked["calls"]:
        store.record(Capture(SITE, schema, "choice", f"user: {text}", label, "llm", 0, None, None))
    encoder = resolve_encoder(settings.encoder)
    (result,) = train_sites(store, settings, PooledTrainer(encoder, "cpu", seed=asked["seed"]))
    model = result.model
    if model is None:
        raise SystemExit(f"stuntd trained nothing: {result.reason}")
    decider, head = PooledDecider(encoder, "cpu"), site_dir(place / "models", SITE) / HEAD_FILE
    said = [decider.decide(model, head, store.redact(f"user: {text}")) for text in asked["texts"]]
    threshold = float("inf") if model.threshold is None else model.threshold
    farthest = float("inf") if model.novelty_cutoff is None else model.novelty_cutoff
    return {
        "labels": [model.labels[each.label] for each in said],
        "answered": [each.confidence >= threshold and (each.novelty or 0.0) <= farthest for each in said],
        "confidence": [each.confidence for each in said],
    }


if __name__ == "__main__":
    main()
