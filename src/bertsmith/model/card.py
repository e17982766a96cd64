"""The model card, README.md of a model folder: what the model is, how to use it, its scores, and what it was
trained on. The hub shows it as the model's page.

Its figures come from bertsmith.json, which also lists the test files that the corpus was checked against. The
card isn't hashed, since its readers are to complete it before they publish the model.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.files import read_json, sha256
from bertsmith.model.locate import ALIASES, is_hub_name
from bertsmith.model.manifest import Manifest, read_unverified_manifest, read_verified_manifest

CARD = "README.md"
_MOST_LABELS = 30
_HEAD, _OUTPUTS = (
    "head.safetensors",
    "3_Dense",
)  # a head of ours, and the same as sentence-transformers' module
_UNTRAINED = (
    "linear",
    "names",
    "self-training",
    "names-texts",
)  # fine-tuning methods that don't change the encoder
_ROLES = {"train": "Labelled rows", "texts": "Texts without labels", "unlabelled": "Texts without labels"}
_METRICS = {  # plain names for the metrics of a pre-training's log
    "mlm_accuracy": "masked tokens guessed right",
    "mlm_majority": "the same by always guessing the commonest",
    "mlm_loss": "loss of a masked token",
    "mlm_perplexity": "perplexity of a masked token",
}
_SPLITS = ("test", "cross-validation", "dev")  # whose figures the hub shows: the first that there is
_TODO = """## Before you publish it

Replace these lines:

- Licence: of this model (`license: …` between the lines of hyphens above), and of the texts that it learned
  from.
- Languages (`language: …` there), and kinds of text.
- What it is for, what it is not for, and whom its errors could harm."""
_PREDICTOR = 'from bertsmith import Predictor\n\nPredictor.load("{folder}").predict([{input}])'
_EMBEDDER = 'from bertsmith import Embedder\n\nEmbedder("{folder}").documents(["A text."])  # a vector each'
_TASK_OF_CLASS = {  # by the end of transformers' class, for models that another tool made
    "ForMaskedLM": "pretraining",
    "ForPreTraining": "pretraining",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "question-answering",
    "Model": "encoder",
}
_CHECKED, _ROW_LENGTH = "corpus_checked_against", "table_row_length"  # keys of a provenance


class _ModelKind(NamedTuple):
    """What a model does: the hub's pipeline tag, the card's title, and an example in Python."""

    pipeline: str
    title: str
    example: str


def _predictor_example(what: str) -> str:
    return _PREDICTOR.replace("{input}", what)


_KINDS = {
    "pretraining": _ModelKind(
        "fill-mask",
        "A language model for masked words",
        "from bertsmith import MaskedLanguageModel\n\n"
        'MaskedLanguageModel.load("{folder}").fill_mask("A text with a {mask}.")',
    ),
    "encoder": _ModelKind("feature-extraction", "An encoder of texts", _EMBEDDER),
    "classification": _ModelKind("text-classification", "A classifier of texts", _PREDICTOR),
    "multi-label": _ModelKind(
        "text-classification", "A classifier of texts, with several labels for each", _PREDICTOR
    ),
    "regression": _ModelKind("text-classification", "A model that gives texts a number", _PREDICTOR),
    "tagging": _ModelKind(
        "token-classification", "A tagger of words", _predictor_example('["A", "sentence\'s", "words"]')
    ),
    "question-answering": _ModelKind(
        "question-answering",
        "A model that finds answers in passages",
        _predictor_example('("A question?", "A passage.")'),
    ),
    "similarity": _ModelKind(
        "sentence-similarity",
        "A model of how similar texts are",
        _predictor_example('("A text.", "Another.")'),
    ),
    "retrieval": _ModelKind("sentence-similarity", "A model for search", _EMBEDDER),
    "reranking": _ModelKind(
        "text-ranking", "A re-ranker of search results", _predictor_example('("A query", "A document.")')
    ),
}
_ANY = _ModelKind("feature-extraction", "A model for texts", _PREDICTOR)
_BEGINNING = _ModelKind(
    "feature-extraction",
    "A pre-trained encoder, to be fine-tuned",
    "from bertsmith import finetune\n\n"
    'finetune("classification", model="{folder}", train="rows.csv", out="runs/mine")',
)


def write_card(folder: Path, manifest: Manifest, shape: str) -> None:
    """Writes the card into a model folder that is otherwise complete. `shape` describes the model's size."""
    text = "\n\n".join(_make_sections(folder, manifest, shape)) + "\n"
    (folder / CARD).write_text(text, encoding="utf-8")


def _make_sections(folder: Path, manifest: Manifest, shape: str) -> Iterator[str]:
    kind, origin = _find_kind(folder, manifest), manifest.provenance
    recipe = _read_section(origin, "recipe")
    base = recipe.get("init") or recipe.get("student") or recipe.get("model")
    yield _make_front_matter(folder, manifest, kind, base)
    yield f"# {kind.title}\n\n{shape}. Made with Bertsmith {manifest.bertsmith}."
    tokenizer = folder / "tokenizer_config.json"  # ours
    mask = str((read_json(tokenizer) if tokenizer.exists() else {}).get("mask_token") or "[MASK]")
    example = kind.example.format(folder="FOLDER", mask=mask, input=_example_input(folder, manifest))
    yield f"## How to use it\n\n```python\n{example}\n```\n\n{_describe_other_libraries(folder, manifest)}"
    labels = manifest.settings.get("labels")
    if isinstance(labels, list | tuple) and labels:
        shown = ", ".join(_format_code(label) for label in labels[:_MOST_LABELS])
        more = (
            f" and {len(labels) - _MOST_LABELS} more, in bertsmith.json" if len(labels) > _MOST_LABELS else ""
        )
        yield f"Its {len(labels):,} labels: {shown}{more}."
    if figures := _format_figures(origin):
        yield f"## How good it is\n\n{figures}"
    yield "## How it was made\n\n" + "\n".join(
        f"- {line}" for line in _describe_history(origin, recipe, base)
    )
    yield _TODO


def _find_kind(folder: Path, manifest: Manifest) -> _ModelKind:
    task = manifest.task
    if task in ("imported", "extended"):
        ends = (name for name in _TASK_OF_CLASS if manifest.architecture.endswith(name))
        task = _TASK_OF_CLASS.get(next(ends, ""), "")
    # Rows of numbers have no mask to write, and ELECTRA's discriminator fills none.
    if task == "pretraining" and (_reads_numbers(folder) or manifest.architecture == "ElectraForPreTraining"):
        return _BEGINNING
    return _KINDS.get(task, _ANY)


def _reads_numbers(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("patches.json", "numbers.json"))


def _example_input(folder: Path, manifest: Manifest) -> str:
    """An input for the example, as Python: a text, a pair, a text with columns, or a row of numbers."""
    if _reads_numbers(folder):
        return "row"
    pair = (
        _read_section(manifest.settings, "settings").get("text_pair")
        or manifest.settings.get("pairs") is True
    )
    if columns := _read_columns(manifest):
        texts = {"text": "A text."} | ({"text_pair": "Another."} if pair else {})
        return json.dumps(texts | {str(column.get("name")): _example_cell(column) for column in columns})
    return '("A text.", "Another.")' if pair else '"A text."'


def _read_columns(manifest: Manifest) -> list[Mapping[str, Any]]:
    """The columns beside the text that the model was trained with."""
    columns = manifest.settings.get("columns")
    if not isinstance(columns, list | tuple):
        return []
    return [column for column in columns if isinstance(column, Mapping)]


def _example_cell(column: Mapping[str, Any]) -> object:
    """A possible value of the column, for the example."""
    mean, values = column.get("mean"), column.get("values")
    if isinstance(mean, int | float):
        return round(mean, 1)
    return next((str(value) for value in values if value), "") if isinstance(values, list | tuple) else ""


def _make_front_matter(folder: Path, manifest: Manifest, kind: _ModelKind, base: object) -> str:
    library = "bertsmith" if _is_bare(manifest) else "transformers"
    if (folder / "modules.json").exists():
        library = "sentence-transformers"
    lines: dict[str, Any] = {"library_name": library, "pipeline_tag": kind.pipeline, "tags": ["bertsmith"]}
    if isinstance(base, str) and (hub_name := _find_hub_name(base)):
        lines["base_model"] = hub_name
    if result := _make_result(manifest.provenance, kind):
        out = _read_section(manifest.provenance, "recipe").get("out")
        name = _clean(Path(str(out)).name) if out else kind.title
        lines["model-index"] = [{"name": name, "results": [result]}]
    written = (f"{name}: {_to_yaml(value)}" for name, value in lines.items())
    return "\n".join(["---", *written, "---"])


def _to_yaml(value: object) -> str:
    """JSON that YAML 1.1 reads too, to which a number such as 1e-05 is a text unless it has a point."""
    text = json.dumps(value, ensure_ascii=False)
    quoted, exponent = r'"(?:[^"\\]|\\.)*"', r"(?<![\d.])(-?\d+)(e[-+]?\d+)"
    return re.sub(
        f"{quoted}|{exponent}", lambda match: f"{match[1]}.0{match[2]}" if match[1] else match[0], text
    )


def _make_result(origin: Mapping[str, Any], kind: _ModelKind) -> dict[str, Any] | None:
    """The figures as the hub's model index has them: of the test rows where there are any, else of
    cross-validation or dev, or of held-out text. None without any.
    """
    metrics, recipe = _read_section(origin, "metrics"), _read_section(origin, "recipe")
    split = next((name for name in _SPLITS if _finite_numbers(_read_section(metrics, name))), "")
    numbers = _finite_numbers(_read_section(metrics, split) if split else metrics)
    if not numbers:
        return None
    file = recipe.get(split) if split in ("test", "dev") else None
    file = file or recipe.get("train") or "held-out text"
    data = _clean(Path(file).name) if isinstance(file, str) else "rows of several files"
    return {
        "task": {"type": kind.pipeline},
        # The hub wants a type: its name of a data set, or one's own.
        "dataset": {
            "name": data,
            "type": re.sub(r"[^a-z0-9]+", "-", Path(data).stem.lower()).strip("-") or "own",
        }
        | ({"split": split} if split else {}),
        "metrics": [
            {"type": _clean(name), "value": value, "name": _METRICS.get(name, _clean(name))}
            for name, value in numbers.items()
        ],
    }


def _finite_numbers(part: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in part.items() if _is_number(value) and math.isfinite(value)}


def _is_bare(manifest: Manifest) -> bool:
    return manifest.architecture.endswith("Model")


def _describe_other_libraries(folder: Path, manifest: Manifest) -> str:
    """Sentences on which other libraries open the folder, and with which parts of the model."""
    if not _is_bare(manifest):
        sentence = f"`transformers` opens it as `{manifest.architecture}`."
    elif _reads_numbers(folder):
        sentence = "A `row` is numbers with blanks between them, as `bertsmith sequences encode` writes it."
        sentence += " Other libraries can't read such rows."
    elif not (folder / "modules.json").exists():
        sentence = "`transformers` opens its encoder."
    elif _read_columns(manifest):
        sentence = "`sentence-transformers` opens its encoder, without the head and the columns."
    elif not (folder / _HEAD).exists():
        sentence = "`sentence-transformers` opens it."
    elif (folder / _OUTPUTS).exists():
        sentence = "`sentence-transformers` opens it: its vectors are the head's outputs."
    else:  # on a static table, or of classes of pairs
        sentence = "`sentence-transformers` opens it without the head: its vectors are those of texts."
    if manifest.settings.get("confidence"):
        sentence += " Other libraries don't know the temperature and the thresholds in bertsmith.json."
    elif manifest.settings.get("threshold") is not None:
        sentence += (
            " Other libraries don't know the threshold in bertsmith.json from which there is no answer."
        )
    elif _read_section(manifest.settings, "settings").get("crf") is True:
        sentence += f" Other libraries don't know the CRF in {_HEAD}, which decides by the whole sentence."
    return sentence


def _format_figures(origin: Mapping[str, Any]) -> str:
    """The table of metrics: one column for a pre-training; for a task one for each split. Empty
    without any.
    """
    metrics = _read_section(origin, "metrics")
    parts = {name: values for name, values in metrics.items() if isinstance(values, Mapping)}
    if not parts:
        parts = {"held-out text": {name: value for name, value in metrics.items() if _is_number(value)}}
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    if not names:
        return ""
    numbers = {name: " | ".join(_format_number(part.get(name)) for part in parts.values()) for name in names}
    rows = [f"| {_METRICS.get(name, _clean(name))} | {shown} |" for name, shown in numbers.items()]
    head = f"| | {' | '.join(map(_clean, parts))} |\n| --- |{' --- |' * len(parts)}"
    explanations = {
        "dev": "dev chose the settings",
        "cross-validation": "cross-validation is of the training rows, each by a model that didn't have it",
        "test": "test was measured once, and chose nothing",
    }
    notes = [text for name, text in explanations.items() if name in parts]
    after = f"\n\n{'; '.join(notes).capitalize()}." if notes else ""
    return "\n".join([head, *rows]) + after


def _describe_history(origin: Mapping[str, Any], recipe: Mapping[str, Any], base: object) -> Iterator[str]:
    if base and isinstance(base, str):
        yield f"It began from {_format_code(_shorten_path(base))}."
    elif checkpoint := recipe.get("decay_from"):
        start = _describe_checkpoint(str(checkpoint))
        yield f"It began from {start}; steps and tokens below are those of the decay alone."
    elif "corpus" in recipe:
        yield "It began from random weights."
    teachers = recipe.get("teacher")
    if teachers and isinstance(teachers, str | list | tuple):
        paths = [teachers] if isinstance(teachers, str) else list(teachers)
        names = ", ".join(_format_code(_shorten_path(str(path))) for path in paths)
        yield f"Its teacher{'s' if len(paths) > 1 else ''}: {names}."
    if imported := origin.get("imported_from"):
        yield f"Imported from {_format_code(imported)}."
    if text := _read_section(origin, "text"):
        checked = origin.get("corpus_checked_against")
        yield _describe_text(text, len(checked) if isinstance(checked, list | tuple) else 0)
    for role, title in _ROLES.items():
        value = recipe.get(role)
        if value and isinstance(value, str | list | tuple):
            files = [value] if isinstance(value, str) else list(value)
            rows = origin.get("rows") if role == "train" else None
            counted = f", {rows:,} rows" if isinstance(rows, int) else ""
            yield f"{title}: {', '.join(_format_code(Path(str(file)).name) for file in files)}{counted}."
    facts = {
        "objective": recipe.get("objective"),
        "method": origin.get("method"),
        "steps": origin.get("steps"),
        "tokens": origin.get("tokens"),
    }
    if origin.get("method") in _UNTRAINED:
        yield "The encoder stayed as it was; only the head on it was learned."
    else:
        facts |= {
            "epochs": recipe.get("epochs"),
            "batch size": recipe.get("batch_size") or _read_section(recipe, "data").get("batch_size"),
            "learning rate": _read_section(recipe, "optimizer").get("learning_rate"),
            "optimizer": _read_section(recipe, "optimizer").get("kind"),
            "seed": recipe.get("seed"),
        }
    known = [
        f"{name} {_format_fact(value)}"
        for name, value in facts.items()
        if isinstance(value, str | int | float)
    ]
    if known:
        yield f"Settings: {', '.join(known)}."
    yield "bertsmith.json has every setting, and the hash of each file."


def _describe_checkpoint(path: str) -> str:
    """The name of a checkpoint, step-N of a run, from which a decay began."""
    run, step = Path(path).parent.parent, Path(path).name.removeprefix("step-")
    return (
        f"step {int(step):,} of the long run {_format_code(_shorten_path(str(run)))}"
        if step.isdecimal()
        else _format_code(_shorten_path(path))
    )


def _describe_text(text: Mapping[str, Any], checked: int) -> str:
    """A sentence on the pre-training text: its size, its licence, and the test files it was checked
    against.
    """
    sizes = ", ".join(
        f"{text[name]:,} {name}" for name in ("documents", "words", "tokens") if _is_number(text.get(name))
    )
    licence = f" Their licence: {_format_code(text['licence'])}." if text.get("licence") else ""
    files = f" Rows of {checked:,} test file{'s' if checked > 1 else ''} were taken out." if checked else ""
    return f"Pre-training text: {sizes}.{licence}{files}"


def _read_section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = of.get(name)
    return section if isinstance(section, Mapping) else {}


def _find_hub_name(base: str) -> str | None:
    """The hub's name of a base model; None for a folder."""
    if Path(base).exists():
        return None
    return ALIASES[base].hub if base in ALIASES else base if is_hub_name(base) else None


def _shorten_path(path: str) -> str:
    """The last two parts of a path: a published card mustn't show where files were on a machine."""
    if _find_hub_name(path) or "/" not in path:
        return path
    return "/".join(part for part in Path(path).parts[-2:] if part != "/")


def _format_code(text: object) -> str:
    """The text as Markdown code, safe for any content."""
    return f"`{_clean(text).replace('`', chr(39)) or ' '}`"


def _clean(text: object) -> str:
    """The text's first 80 characters, without line breaks and characters that would end a table's cell."""
    return "".join(char if char.isprintable() and char != "|" else " " for char in str(text))[:80]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_number(value: object) -> str:
    if not _is_number(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _format_fact(value: object) -> str:
    if isinstance(value, str):
        return _clean(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def checked_against(folder: Path | None) -> frozenset[str] | None:
    """The SHA-256 of each test file that a model's corpus was checked against; None where nothing is known of
    the corpus, and without a folder.
    """
    manifest = read_verified_manifest(folder) if folder is not None else None
    known = manifest.provenance.get(_CHECKED) if manifest is not None else None
    return frozenset(map(str, known)) if isinstance(known, list) else None


def contamination_provenance(*checked: Iterable[str] | None) -> dict[str, list[str]]:
    """The entry of a provenance for the corpora that a model was trained on one after the other: the test
    files that all of them were checked against. A corpus of which nothing is known (None) is ignored.
    """
    known = [frozenset(hashes) for hashes in checked if hashes is not None]
    return {_CHECKED: sorted(frozenset.intersection(*known))} if known else {}


def unmeasured(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A model's provenance without its figures, for one that was changed after they were measured."""
    return {name: value for name, value in provenance.items() if name != "metrics"}


def unchecked_warning(folder: Path, test: Path) -> str | None:
    """A warning where the model's corpus was never checked against the test file; None otherwise."""
    checked = checked_against(folder)
    if checked is None or not test.is_file() or sha256(test) in checked:
        return None
    return (
        f"the corpus that this model was pre-trained on was never compared with {test.name}: it may have "
        f"read the answers. bertsmith corpus decontaminate CORPUS --against {test} tells, and takes them out."
    )


def learned_row_length(model: Path | None) -> int | None:
    """The row length of the table that a model was pre-trained on, from its bertsmith.json; None
    without one.
    """
    manifest = None if model is None else read_unverified_manifest(model)
    length = None if manifest is None else manifest.provenance.get(_ROW_LENGTH)
    return length if isinstance(length, int) else None


def rows_provenance(length: int | None) -> dict[str, int]:
    """The entry of a provenance for a table's row length; empty without one."""
    return {} if length is None else {_ROW_LENGTH: length}
