"""README.md of a model folder: true to bertsmith.json, silent about the machine, free to be changed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bertsmith.model.card import CARD, write_card
from bertsmith.model.manifest import MANIFEST, Manifest, read_verified_manifest
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model

RECIPE = {
    "task": "classification",
    "model": "minilm",
    "train": "/home/anna/secret/tickets.csv",
    "out": "/home/anna/runs/tickets",
    "epochs": 3.0,
    "batch_size": 32,
    "optimizer": {"kind": "adamw", "learning_rate": 2e-5},
}
METRICS = {"dev": {"accuracy": 0.91251, "f1": None}, "test": {"accuracy": 0.9}}


def card(tmp_path: Path, **values: Any) -> str:
    about = {"architecture": "BertModel", "task": "classification", "settings": {"labels": ["good", "bad"]}}
    origin = {"recipe": RECIPE, "metrics": METRICS, "rows": 1200, "method": "full"}
    write_card(tmp_path, Manifest(**({"provenance": origin} | about | values)), "A `bert` of 2 layers")
    return (tmp_path / CARD).read_text()


def test_numbers_are_numbers_to_yaml_too(tmp_path: Path) -> None:
    figures = {"brier": 1e-05, "ece": -2e-09, "loss": 1.5e-07, "large": 1e22, "rows": 3}
    recipe = {**RECIPE, "train": 'a: 1e-05, "b": [2e-05]'}
    origin = {"recipe": {**recipe, "test": recipe["train"]}, "metrics": {"test": figures}}
    front = yaml.safe_load(card(tmp_path, provenance=origin).split("---")[1])
    (result,) = front["model-index"][0]["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == figures
    assert result["dataset"]["name"] == recipe["train"]


def test_it_says_what_the_model_does_how_well_and_what_it_learned_from(tmp_path: Path) -> None:
    text = card(tmp_path)
    assert text.startswith(
        '---\nlibrary_name: "bertsmith"\npipeline_tag: "text-classification"\ntags: ["bertsmith"]\n'
        'base_model: "sentence-transformers/all-MiniLM-L6-v2"\nmodel-index: [{"name": "tickets", "results": '
        '[{"task": {"type": "text-classification"}, "dataset": {"name": "tickets.csv", "type": "tickets", '
        '"split": "test"}, "metrics": [{"type": "accuracy", "value": 0.9, "name": "accuracy"}]}]}]\n---\n\n'
        "# A classifier of texts\n\nA `bert` of"
    )
    assert 'Predictor.load("FOLDER").predict(["A text."])' in text
    assert "Its 2 labels: `good`, `bad`." in text
    assert "| | dev | test |\n| --- | --- | --- |\n| accuracy | 0.9125 | 0.9 |\n| f1 | – | – |\n" in text
    assert "test was measured once" in text
    assert "- It began from `minilm`.\n- Labelled rows: `tickets.csv`, 1,200 rows.\n" in text
    assert "Settings: method full, epochs 3, batch size 32, learning rate 2e-05, optimizer adamw." in text
    assert "Licence" in text


PRETRAINED = {"mlm_accuracy": 0.25, "mlm_perplexity": 19.5}


@pytest.mark.parametrize(
    ("metrics", "split", "expected"),
    [
        (METRICS, "test", {"accuracy": 0.9}),
        ({"dev": {"accuracy": 0.5}, "cross-validation": {"f1": 0.25}}, "cross-validation", {"f1": 0.25}),
        ({"dev": {"accuracy": 0.5, "f1": float("nan")}, "test": {"f1": None}}, "dev", {"accuracy": 0.5}),
        (PRETRAINED, None, PRETRAINED),
        ({}, None, None),
        ({"test": {"a": True, "b": "high"}, "x": [1]}, None, None),
    ],
)
def test_the_hubs_own_reader_finds_the_figures(
    tmp_path: Path, metrics: Any, split: str | None, expected: Any
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    recipe = RECIPE | {"test": "/home/anna/Prüfung | 1\n.csv", "out": "/home/anna/runs/Größe: [1]"}
    found = hub.ModelCard(card(tmp_path, provenance={"recipe": recipe, "metrics": metrics}))
    assert (found.data.library_name, found.data.pipeline_tag) == ("bertsmith", "text-classification")
    if expected is None:
        assert found.data.eval_results is None
        return
    assert {each.metric_type: each.metric_value for each in found.data.eval_results} == expected
    assert {each.dataset_split for each in found.data.eval_results} == {split}
    assert found.data.model_name == "Größe: [1]"
    first = found.data.eval_results[0]
    names = {"test": ("Prüfung   1 .csv", "pr-fung-1")}
    assert (first.dataset_name, first.dataset_type) == names.get(str(split), ("tickets.csv", "tickets"))
    again = hub.ModelCard(str(found))  # written by the hub's library
    assert again.data.to_dict() == found.data.to_dict()


def test_an_encoder_that_was_not_trained_has_no_rate(tmp_path: Path) -> None:
    text = card(tmp_path, provenance={"recipe": RECIPE, "method": "linear"})
    assert "The encoder stayed as it was" in text
    assert "Settings: method linear.\n" in text


def test_the_example_asks_as_the_model_was_trained(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    pair = {"settings": {"text": "a", "text_pair": "b"}}
    columns = [{"kind": "number", "name": "age", "mean": 48.29}, {"name": "plan", "values": ["", "free"]}]
    assert '.predict([("A text.", "Another.")])' in card(tmp_path, settings=pair)
    assert '.predict([("A text.", "Another.")])' in card(tmp_path, settings={"pairs": True})
    assert '.predict(["A text."])' in card(tmp_path, settings={"pairs": False})
    text = card(tmp_path, settings={"columns": columns})
    assert '.predict([{"text": "A text.", "age": 48.3, "plan": "free"}])' in text
    assert "opens its encoder, without the head" in text
    assert '"text_pair": "Another.", "age": 48.3' in card(tmp_path, settings=pair | {"columns": columns})
    (tmp_path / "patches.json").write_text("{}")
    text = card(tmp_path)
    assert ".predict([row])" in text and "`bertsmith sequences encode` writes it" in text


def test_a_decay_names_the_long_run_that_it_began_from(tmp_path: Path) -> None:
    begun = {"corpus": "tokens", "decay_from": "/home/anna/runs/long/checkpoints/step-00004435"}
    origin = {"recipe": begun, "steps": 1000, "text": {"documents": 61405, "tokens": 19267201}}
    text = card(tmp_path, provenance=origin | {"metrics": {"mlm_accuracy": 0.4743}}, task="pretraining")
    assert "- It began from step 4,435 of the long run `runs/long`; steps and tokens below are" in text
    assert "Pre-training text: 61,405 documents, 19,267,201 tokens." in text
    assert "| masked tokens guessed right | 0.4743 |" in text
    assert "random weights" not in text


def test_it_does_not_say_where_things_lay_on_the_machine(tmp_path: Path) -> None:
    model = tmp_path / "anna" / "private" / "law" / "model"
    model.mkdir(parents=True)
    text = card(tmp_path, provenance={"recipe": RECIPE | {"model": str(model)}})
    assert "It began from `law/model`" in text
    assert "anna" not in text
    assert "base_model" not in text


@pytest.mark.parametrize(
    ("architecture", "file", "title"),
    [
        ("BertForMaskedLM", None, "A language model for masked words"),
        ("BertForMaskedLM", "patches.json", "A pre-trained encoder, to be fine-tuned"),
        ("ElectraForPreTraining", None, "A pre-trained encoder, to be fine-tuned"),
        ("RobertaForTokenClassification", None, "A tagger of words"),
        ("BertModel", None, "An encoder of texts"),
    ],
)
def test_a_model_of_other_tools_is_known_by_its_class(
    architecture: str, file: str | None, title: str, tmp_path: Path
) -> None:
    if file is not None:
        (tmp_path / file).write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    task = "imported" if file is None and architecture != "ElectraForPreTraining" else "pretraining"
    text = card(tmp_path, architecture=architecture, task=task, settings={}, provenance={})
    assert f"\n# {title}\n" in text
    assert ("<mask>" in text) == title.startswith("A language model")


@pytest.mark.parametrize(
    ("about", "library", "sentence"),
    [
        ({"architecture": "BertForMaskedLM", "task": "pretraining"}, "transformers", "as `BertForMaskedLM`."),
        (
            {"architecture": "BertModel", "task": "mine:Mine"},
            "bertsmith",
            "`transformers` opens its encoder.",
        ),
        ({"architecture": "StaticModel", "task": "encoder"}, "sentence-transformers", "opens it."),
        ({"task": "imported"}, "sentence-transformers", "opens it."),
    ],
)
def test_it_names_what_opens_the_folder(
    about: dict[str, str], library: str, sentence: str, tmp_path: Path
) -> None:
    if library == "sentence-transformers":
        (tmp_path / "modules.json").write_text("[]")
    text = card(tmp_path, **about)
    assert f'library_name: "{library}"' in text
    assert sentence in text


def test_it_names_the_part_of_a_head_that_other_libraries_open(tmp_path: Path) -> None:
    """A linear head of pooled states is a module of sentence-transformers' too; one on a static table, and
    that of classes of pairs, are not.
    """
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "head.safetensors").write_text("")
    for about in ({"architecture": "StaticModel"}, {"task": "similarity"}):
        text = card(tmp_path, **about)
        assert "`sentence-transformers` opens it without the head" in text and "head's outputs" not in text
    (tmp_path / "3_Dense").mkdir()
    text = card(tmp_path, settings={"confidence": {"temperature": 2}})
    assert "opens it: its vectors are the head's outputs. Other libraries don't know the temperature" in text


@pytest.mark.parametrize(
    ("task", "settings", "sentence"),
    [
        ("question-answering", {"threshold": 0.0}, "the threshold in bertsmith.json from which"),
        ("question-answering", {"threshold": None}, None),
        ("tagging", {"settings": {"crf": True}}, "the CRF in head.safetensors"),
        ("tagging", {"settings": {"crf": False}}, None),
    ],
)
def test_it_says_what_other_libraries_leave_out(
    task: str, settings: dict[str, Any], sentence: str | None, tmp_path: Path
) -> None:
    text = card(tmp_path, architecture="BertForTokenClassification", task=task, settings=settings)
    assert (
        f"Other libraries don't know {sentence}" if sentence else "BertForTokenClassification`.\n"
    ) in text


def test_what_a_stranger_wrote_into_bertsmith_json_stays_in_its_place(tmp_path: Path) -> None:
    odd = {
        "recipe": {"model": ["x"], "train": {"a": 1}, "optimizer": 3, "teacher": "a`b\n# c", "epochs": [1]},
        "metrics": {"dev|x": {"f1\n|": "high", "loss": float("nan")}},
        "corpus_checked_against": 7,
        "text": {"documents": "many", "licence": "`\n# free"},
        "steps": {"a": 1},
    }
    text = card(tmp_path, provenance=odd, settings={"labels": ["a`|\n# b"] * 40})
    assert [line for line in text.splitlines() if line.startswith("# ")] == ["# A classifier of texts"]
    assert "and 10 more, in bertsmith.json" in text
    assert card(tmp_path, provenance={}, settings={"labels": {"a": 1}})


def test_a_saved_model_has_one_that_may_be_changed(tmp_path: Path, model_folder: Path) -> None:
    model, _ = load_pretraining_model(model_folder)
    text = {"documents": 1200, "words": 34_000, "licence": "CC BY-SA 3.0"}
    origin = {"steps": 70, "tokens": 5600, "metrics": {"mlm_accuracy": 0.25}, "recipe": {"corpus": "c"}}
    origin |= {"text": text, "corpus_checked_against": ["0" * 64]}
    save_pretraining_model(tmp_path / "m", model, None, origin)
    path = tmp_path / "m" / CARD
    weights = sum(each.numel() for each in model.parameters())
    said = path.read_text()
    assert f"with {weights:,} weights" in said
    assert "- It began from random weights.\n" in said
    assert (
        "- Pre-training text: 1,200 documents, 34,000 words. Their licence: `CC BY-SA 3.0`. Rows of 1 test"
        in said
    )
    assert "Settings: steps 70, tokens 5,600." in said
    path.write_text("# Mine\n")
    manifest = read_verified_manifest(tmp_path / "m")
    assert manifest is not None
    assert CARD not in manifest.files
    path.unlink()
    load_pretraining_model(tmp_path / "m")
    assert (tmp_path / "m" / MANIFEST).exists()
