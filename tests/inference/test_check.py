"""`check` finds what changes a model's answers, also where the hashes were made anew, and nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from bertsmith import import_legacy
from bertsmith.cli.main import main
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.checking.check import check_model
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.cpu.kernel_layer import KernelLayer
from bertsmith.model.lora import add_lora, save_adapter
from bertsmith.model.manifest import MANIFEST, read_unverified_manifest, write_manifest
from bertsmith.tasks.golden.records import GOLDEN, project, read_golden, signs, write_golden
from bertsmith.text.tokens.tokenizer import Tokenizer
from served_models import (
    MORE,
    PIECES,
    TASKS,
    save_encoder,
    save_fine_tuned,
    save_mixed,
    save_of_numbers,
    save_pretrained,
)

KINDS = [*TASKS, *MORE, "mixed", "masked-language", "embedding", "added"]
TOKENIZER, ENCODER = "tokenizer.json", "sentence_bert_config.json"
ADDED = [f"[W{number}]" for number in range(20)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound model of every kind, with its golden answers."""
    place = tmp_path_factory.mktemp("models")
    made = {name: save_fine_tuned(place / name, name) for name in (*TASKS, *MORE)}
    made["mixed"] = save_mixed(place / "mixed")
    made["masked-language"] = save_pretrained(place / "masked-language")
    made["embedding"] = save_encoder(place / "embedding")
    tokenizer = Tokenizer.from_pieces([*PIECES, *ADDED], lowercase=True)
    tokenizer.backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in ADDED])
    made["added"] = save_of_numbers(place / "added", tokenizer)
    for folder in made.values():
        assert write_golden(folder) == ""
        rehash(folder)  # of what save_encoder writes beside the model
    return made


@pytest.mark.parametrize(
    ("kind", "threads"), [*((kind, 1) for kind in KINDS), ("classification", 2), ("embedding", 2)]
)
def test_a_sound_folder_is_found_sound(folders: dict[str, Path], kind: str, threads: int) -> None:
    with number_of_threads(threads):
        found = check_model(folders[kind])
    assert found.agrees, found
    assert len(found.comparisons["float32"].differences) == 0
    assert found.comparisons["float32"].texts >= 4


def test_writing_leaves_random_numbers_and_other_files_alone(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = copied(folders["classification"], tmp_path)
    files = {path: path.read_bytes() for path in folder.iterdir() if path.name not in (GOLDEN, MANIFEST)}
    before = torch.random.get_rng_state()
    write_golden(folder)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {path: path.read_bytes() for path in files} == files
    assert (folder / GOLDEN).read_bytes() == (folders["classification"] / GOLDEN).read_bytes()


# -- damages -----------------------------------------------------------------------------------------------


def tensors(change: Callable[[dict[str, torch.Tensor]], None], file: str = "model.safetensors") -> Any:
    """A damage of the weights."""

    def damage(folder: Path) -> None:
        found = load_file(folder / file)
        change(found)
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / file)

    return damage


def settings(file: str, change: Callable[[Any], Any]) -> Any:
    """A damage of a file of settings, changed in place or replaced by what `change` returns."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        changed = change(content)
        (folder / file).write_text(json.dumps(content if changed is None else changed))

    return damage


def weight_of(layer: int, part: str) -> str:
    return f"bert.encoder.layer.{layer}.{part}.weight"


def flip(found: dict[str, torch.Tensor]) -> None:
    found[weight_of(0, "attention.self.value")][3, 5] *= -1


def roll_positions(found: dict[str, torch.Tensor]) -> None:
    name = "bert.embeddings.position_embeddings.weight"
    found[name] = found[name].roll(1, 0)


def swap_layers(found: dict[str, torch.Tensor]) -> None:
    for name in [name for name in found if ".layer.0." in name]:
        other = name.replace(".layer.0.", ".layer.1.")
        found[name], found[other] = found[other], found[name]


def transpose(found: dict[str, torch.Tensor]) -> None:
    name = weight_of(1, "attention.output.dense")
    found[name] = found[name].T


def scale_norm(found: dict[str, torch.Tensor]) -> None:
    found["bert.encoder.layer.1.output.LayerNorm.weight"] *= 1.001


def no_segments(found: dict[str, torch.Tensor]) -> None:
    found["bert.embeddings.token_type_embeddings.weight"].zero_()


def transitions(found: dict[str, torch.Tensor]) -> None:
    name = next(name for name in found if "transition" in name)
    found[name] += torch.arange(found[name].numel()).view(found[name].shape).float() / 10


def shift_half(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    upper = sorted((number, piece) for piece, number in vocabulary.items() if number > len(vocabulary) // 2)
    numbers = [number for number, _ in upper]
    for (_, piece), number in zip(upper, [*numbers[1:], numbers[0]], strict=True):
        vocabulary[piece] = number


def lose_added(number: int) -> Any:
    """A piece of the vocabulary that was found in texts as a whole, and no longer is."""

    def change(content: dict[str, Any]) -> None:
        content["added_tokens"] = [
            each for each in content["added_tokens"] if each["content"] != ADDED[number]
        ]

    return settings(TOKENIZER, change)


def without_sep(folder: Path) -> None:
    """In the template of a file that alone says how a text is read."""

    def change(content: dict[str, Any]) -> None:
        del content["post_processor"]["single"][-1], content["post_processor"]["pair"][-1]

    settings(TOKENIZER, change)(folder)
    # BertTokenizer doesn't follow the template, and such a folder isn't opened.
    fast = set_to("tokenizer_class", value="PreTrainedTokenizerFast")
    settings("tokenizer_config.json", fast)(folder)


def in_manifest(change: Callable[[dict[str, Any]], None]) -> Any:
    return settings(MANIFEST, lambda content: change(content["settings"]))


def swap_labels(state: dict[str, Any]) -> None:
    state["labels"][0], state["labels"][1] = state["labels"][1], state["labels"][0]


def set_to(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


CONFIDENCE = {
    "temperature": 1.0,
    "threshold": 0.0,
    "ece_before": 0.1,
    "ece_after": 0.1,
    "coverage": 1.0,
    "risk": 0.1,
    "examples": 10,
}
NORMALISE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
POOLING, PROMPTS = "1_Pooling/config.json", "config_sentence_transformers.json"


# What is damaged, how, and the first stage that tells of it.
DAMAGES: dict[str, tuple[str, Any, str]] = {
    "a value's sign": ("classification", tensors(flip), "layer 1"),
    "positions moved by one": ("classification", tensors(roll_positions), "embeddings"),
    "layers swapped": ("classification", tensors(swap_layers), "layer 1"),
    "a square weight transposed": ("multi-label", tensors(transpose), "layer 2"),
    "one layer's norm": ("tagging", tensors(scale_norm), "layer 2"),
    "segments without embeddings": ("question-answering", tensors(no_segments), "embeddings"),
    "a CRF's transitions": ("tagging", tensors(transitions, "head.safetensors"), "answer"),
    "epsilon of the norms": (
        "regression",
        settings("config.json", set_to("layer_norm_eps", value=1e-2)),
        "embeddings",
    ),
    "another GELU": (
        "classification",
        settings("config.json", set_to("hidden_act", value="gelu_new")),
        "layer 2",
    ),
    "names of labels swapped": ("classification", in_manifest(swap_labels), "answer"),
    "temperature": (
        "multi-label",
        in_manifest(set_to("confidence", value=CONFIDENCE | {"temperature": 1.01})),
        "answer",
    ),
    "thresholds": (
        "multi-label",
        in_manifest(set_to("confidence", value=CONFIDENCE | {"label_thresholds": [0.9, 0.9, 0.9]})),
        "answer",
    ),
    "capitals kept": (
        "classification",
        settings("tokenizer_config.json", set_to("do_lower_case", value=False)),
        "normalised text",
    ),
    "half the vocabulary shifted": ("classification", settings(TOKENIZER, shift_half), "token ids"),
    "the first added token lost": ("added", lose_added(0), "pieces"),
    "the last added token lost": ("added", lose_added(-1), "pieces"),
    "another pooling": ("embedding", settings(POOLING, set_to("pooling_mode", value="cls")), "pooled"),
    "prompts dropped": ("embedding", settings(PROMPTS, set_to("prompts", value={})), "normalised text"),
    "a smaller longest text": ("embedding", settings(ENCODER, set_to("max_seq_length", value=16)), "pieces"),
    "normalisation added": (
        "embedding",
        settings("modules.json", lambda parts: [*parts, NORMALISE]),
        "settings",
    ),
    "the side that is cut": (
        "embedding",
        settings("tokenizer_config.json", set_to("truncation_side", value="left")),
        "settings",
    ),
    "no [SEP]": ("masked-language", without_sep, "pieces"),
    "the embedding of a rare piece": (
        "classification",
        tensors(lambda found: found["bert.embeddings.word_embeddings.weight"][12].neg_()),
        "embeddings",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_behind_new_hashes_is_found_at_its_stage(
    folders: dict[str, Path], tmp_path: Path, damage: str
) -> None:
    kind, make, stage = DAMAGES[damage]
    folder = copied(folders[kind], tmp_path)
    make(folder)
    rehash(folder)
    found = check_model(folder)
    assert not found.agrees
    differences = (*found.settings, *found.comparisons["float32"].differences)
    assert stage in [difference.stage for difference in differences]
    if stage != "settings":
        first = found.comparisons["float32"].differences[0]
        assert first.stage == stage
        assert first.text


@pytest.mark.skipif(torch.backends.mkldnn.is_available() is False, reason="needs a packed layer")
def test_a_kernel_that_is_slightly_wrong_is_found(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = KernelLayer.forward

    def wrong(self: KernelLayer, *arguments: Any) -> torch.Tensor:
        return forward(self, *arguments) * 1.02

    monkeypatch.setattr(KernelLayer, "forward", wrong)
    found = check_model(folders["classification"])
    assert found.comparisons["float32"].agrees
    used = next(name for name in found.comparisons if name != "float32")
    if used.startswith("int16"):
        assert found.comparisons[used].differences[0].stage == "layer 1"


# -- the file, the command ---------------------------------------------------------------------------------


def test_the_signs_of_projections_never_change() -> None:
    """splitmix64 seeded with 0, as its authors' program prints it: 0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4."""
    words = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    for row, word in zip(signs(2), words, strict=True):
        assert row.tolist() == [-1 if word >> bit & 1 else 1 for bit in range(32)]
    assert project([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert len(project(range(1000))) == 32


def test_an_altered_file_is_refused_by_its_hash_before_it_is_asked(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = copied(folders["classification"], tmp_path)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match="SHA-256"):
        check_model(folder)


def test_a_folder_without_golden_answers_is_told_so_and_gets_them(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(folders["classification"], tmp_path)
    (folder / GOLDEN).unlink()
    rehash(folder)
    with pytest.raises(InputError, match=r"no golden answers.*--write"):
        check_model(folder)
    assert main(["check", str(folder)]) == 2
    assert main(["check", str(folder), "--write"]) == 0
    assert read_golden(folder) == read_golden(folders["classification"])
    assert "23 of 23 texts agree" in capsys.readouterr().out


def test_an_imported_checkpoint_has_them(folders: dict[str, Path], tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.json", TOKENIZER, "tokenizer_config.json", "vocab.txt"):
        shutil.copy(folders["masked-language"] / name, old)
    torch.save(load_file(folders["masked-language"] / "model.safetensors"), old / "pytorch_model.bin")
    import_legacy(old, tmp_path / "new")
    found = check_model(tmp_path / "new")
    assert found.agrees and found.comparisons["float32"].texts == 23


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("inside", "sentence"),
    [
        ("adapter", r"adapter \(LoRA\) alone.*Give the folder of the merged model"),
        ("", "Did you mean .*model"),
    ],
)
def test_an_adapter_and_a_run_are_told_which_folder_to_check(
    folders: dict[str, Path], tmp_path: Path, inside: str, sentence: str, write: bool
) -> None:
    copied(folders["classification"], tmp_path)
    encoder = load_encoder(folders["embedding"])
    add_lora(encoder, 2, 4.0)
    save_adapter(tmp_path / "adapter", encoder)
    with pytest.raises(ModelError, match=sentence):
        check_model(tmp_path / inside, write=write)


def test_the_command_ends_with_1_where_something_differs(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(folders["classification"], tmp_path)
    tensors(flip)(folder)
    rehash(folder)
    assert main(["check", str(folder)]) == 1
    assert "layer 1 of 'The court granted" in capsys.readouterr().out
    assert main(["check", str(folder), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["agrees"] is False


def copied(folder: Path, place: Path) -> Path:
    return Path(shutil.copytree(folder, place / "model"))


def rehash(folder: Path) -> None:
    manifest = read_unverified_manifest(folder)
    assert manifest is not None
    write_manifest(folder, manifest)


class number_of_threads:  # noqa: N801
    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.number)

    def __exit__(self, *_: Any) -> None:
        torch.set_num_threads(self.before)
