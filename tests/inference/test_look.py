"""What `look` finds, and its page in a real browser."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith import Explainer, Features, InputError, look
from bertsmith.cli.main import main
from bertsmith.inference.explaining.word_neighbours import word_neighbours
from chromium import Browser
from random_encoder import random_encoder
from served_models import save_fine_tuned, save_pretrained

TEXT = "bano delo firus guma kano ."
OTHERS = [
    "bano kano .",
    "firus delo bano .",
    "lelo miru guma .",
    "delo delo kano miru .",
    "",
    TEXT,
]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("looked_at")
    found = {name: save_fine_tuned(folder / name, name) for name in ("classification", "tagging")}
    return found | {"masked": save_pretrained(folder / "masked")}


def test_neighbours_are_the_nearest_words_of_the_other_texts(models: dict[str, Path]) -> None:
    features = Features(models["masked"], pooling="words")
    found = word_neighbours(features, TEXT, "Delo", OTHERS, count=3)
    assert (found.before, found.word, found.after) == ("bano", "delo", "firus guma kano .")
    layers = features.layer_by_layer([TEXT, *filter(None, OTHERS[:-1])])
    assert len(found.layers) == len(layers)
    for near, (own, *others) in zip(found.layers, layers, strict=True):
        vectors = np.concatenate(others).astype(float)
        wanted, vectors = own[1] - vectors.mean(0), vectors - vectors.mean(0)
        cosines = vectors @ wanted / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wanted)
        assert [each.cosine for each in near] == pytest.approx(sorted(cosines, reverse=True)[:3], abs=1e-5)
    words = {each.word for each in found.layers[0]}
    assert "delo" in words  # in the embeddings it is near its own spelling


def test_long_texts_are_compared_a_few_at_a_time_with_the_same_result(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    features = Features(models["masked"], pooling="words")
    draw, words = np.random.default_rng(0), " ".join(OTHERS).split()
    texts = [" ".join(draw.choice(words, 900)) for _ in range(10)]
    read, all_layers = list[int](), Features.layer_by_layer

    def noted(self: Features, texts: Any) -> Any:
        read.append(len(" ".join(texts).split()))
        return all_layers(self, texts)

    monkeypatch.setattr(Features, "layer_by_layer", noted)
    found = word_neighbours(features, TEXT, "delo", texts)
    assert max(read) <= 8192 < 900 * len(texts)
    monkeypatch.setattr("bertsmith.inference.explaining.word_neighbours._WORDS_AT_A_TIME", 10**6)
    whole = word_neighbours(features, TEXT, "delo", texts)
    assert max(read) == 900 * len(texts)
    for one, other in zip(found.layers, whole.layers, strict=True):
        assert [each.cosine for each in one] == pytest.approx([each.cosine for each in other], abs=1e-5)


def test_texts_that_come_one_by_one_and_again_are_the_same_texts(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    features = Features(models["masked"], pooling="words")
    whole = word_neighbours(features, TEXT, "guma", OTHERS, count=4)
    monkeypatch.setattr("bertsmith.inference.explaining.word_neighbours._AT_A_TIME", len(OTHERS))
    parts = word_neighbours(features, TEXT, "guma", iter(OTHERS * 3), count=4)
    for one, other in zip(whole.layers, parts.layers, strict=True):
        assert [each.cosine for each in one] == pytest.approx([each.cosine for each in other], abs=1e-5)
        assert {(each.before, each.word) for each in one} == {(each.before, each.word) for each in other}


def test_what_is_no_text_for_a_model_of_vectors_is_said(models: dict[str, Path], tmp_path: Path) -> None:
    vectors = random_encoder(tmp_path / "vectors", ["bano", "delo"])
    with pytest.raises(InputError):
        look(vectors, 5)


@pytest.mark.parametrize(
    ("given", "more", "complaint"),
    [
        (TEXT, {"word": "delo"}, "word and among go together"),
        (TEXT, {"word": "dog", "among": OTHERS}, "The text has no word 'dog'. It has: bano, delo"),
        (TEXT, {"word": "delo", "among": [TEXT, ""]}, "have no words, or are all the text itself"),
        (TEXT, {"word": "delo", "among": "delo"}, "among must be texts to find neighbours in, found str"),
        (TEXT, {"word": "delo", "among": ["bano", 3]}, "among, item 2, must be a text, found int"),
        (TEXT, {"target": "likely"}, "there is no answer to explain, found 'likely'"),
        ((TEXT, TEXT, TEXT), {}, "Expected a text"),
    ],
)
def test_what_cannot_be_looked_at_is_said(
    given: Any, more: dict[str, Any], complaint: str, models: dict[str, Path]
) -> None:
    with pytest.raises(InputError, match=complaint):
        look(models["masked"], given, **more)


def test_a_word_that_isnt_there_is_said_before_anything_is_computed(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Explainer, "attributions", None)
    with pytest.raises(InputError, match="The text has no word 'dog'"):
        look(models["classification"], TEXT, word="dog", among=OTHERS)


def test_the_command_writes_a_page_and_replaces_none(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "others.csv").write_text("number,text\n" + "".join(f"1,{each}\n" for each in OTHERS[:4]))
    command = ["look", str(models["classification"]), TEXT, "--out", str(tmp_path / "page.html")]
    more = ["--word", "delo", "--among", str(tmp_path / "others.csv")]
    assert main([*command, *more]) == 0
    printed = capsys.readouterr().out
    assert "nearest to delo in the last layer" in printed and "[" in printed
    assert main(command) == 2
    assert "already exists" in capsys.readouterr().err
    page = (tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    found = Explainer(models["classification"]).attributions(TEXT)
    assert data["attributions"]["target"] == found.target
    assert [each["score"] for each in data["attributions"]["tokens"]] == found.scores.tolist()
    assert main([*command, "--overwrite"]) == 0
    config = models["classification"] / "config.json"
    before = config.read_bytes()
    assert main([*command[:-1], str(config), "--overwrite"]) == 2
    assert "This command reads" in capsys.readouterr().err
    assert config.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--column", "3"], "--column:"),
        (["--no-header", "--encoding", "latin-1"], "--no-header and --encoding:"),
        (["--format", "csv"], "--format:"),
    ],
)
def test_options_of_a_file_without_the_file_are_refused(
    models: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    named: str,
) -> None:
    command = ["look", str(models["classification"]), TEXT, "--out", str(tmp_path / "page.html")]
    assert main([*command, *options]) == 2
    assert f"{named} there is no file to read" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_text_without_words_has_no_tag_to_explain(models: dict[str, Path]) -> None:
    for given in ("", " "):
        with pytest.raises(InputError, match="has no words"):
            look(models["tagging"], given)


def test_markup_in_a_text_stays_text(models: dict[str, Path], tmp_path: Path) -> None:
    look(models["masked"], "<b>bano</b> </script><script>alert(1)</script>").save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<b>bano" not in page and "<script>alert" not in page
    assert page.count("</script>") == 2


def opened(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    browser.wait_for("document.body.dataset.ready === 'yes'")
    assert browser.logged == []
    assert [each for each in browser.requested if not each.startswith(("file:", "blob:"))] == []


def test_the_page_shows_tokens_heads_and_layers(
    models: dict[str, Path], tmp_path: Path, browser: Browser
) -> None:
    found = look(models["classification"], TEXT, word="delo", among=OTHERS)
    found.save(tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    assert browser.text("h1").endswith("classification")
    assert found.neighbours is not None
    buttons = "document.querySelectorAll('.layers button')"
    assert browser.run(f"{buttons}.length") == len(found.neighbours.layers)
    browser.run(f"{buttons}[0].focus()")
    rows = browser.run("[...document.querySelectorAll('.near .cosine')].map((e) => e.textContent)")
    assert rows == ["", *(f"{each.cosine:.3f}" for each in found.neighbours.layers[0])]
    browser.press("ArrowRight")
    rows = browser.run("[...document.querySelectorAll('.near .cosine')].map((e) => e.textContent)")
    assert rows == ["", *(f"{each.cosine:.3f}" for each in found.neighbours.layers[1])]
    browser.click(".head")
    browser.run("document.querySelector('.map').focus()")
    browser.press("ArrowDown")
    assert browser.text(".large .caption").endswith(f": {found.attention.weights[0, 0, 2, 1]:.3f}")
    browser.resize(360, 800)
    assert browser.run("document.documentElement.scrollWidth") <= 360


def test_two_hundred_tokens_of_twelve_layers_do_not_stutter(tmp_path: Path, browser: Browser) -> None:
    shape = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 48, "intermediate_size": 48}
    folder = save_pretrained(tmp_path / "model", max_position_embeddings=256, **shape)
    found = look(folder, " ".join(["bano delo firu guma kano"] * 40)[: 198 * 5 - 1])
    assert found.attention.weights.shape[:2] == (12, 12) and found.attention.weights.shape[2] >= 198
    found.save(tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    milliseconds = browser.run(
        """(async () => {
            const heads = [...document.querySelectorAll('.head')];
            const began = performance.now();
            for (let step = 0; step < 30; step += 1) {
                heads[step * 4].click();
                await new Promise(requestAnimationFrame);
                const map = document.querySelector('.map');
                const box = map.getBoundingClientRect();
                const at = { clientX: box.x + 3 * step, clientY: box.y + 5 * step, bubbles: true };
                map.dispatchEvent(new PointerEvent('pointermove', at));
                await new Promise(requestAnimationFrame);
            }
            return (performance.now() - began) / 60;
        })()"""
    )
    assert milliseconds < 150  # 20 on a quiet machine; a frame that people see as one is 100


def test_an_argument_that_is_not_utf8_is_read_as_far_as_it_can_be(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shell hands such bytes on as lone surrogates, which neither tokenizers nor pages take."""
    assert main(["fill-mask", str(models["masked"]), "bano caf\udce9 [MASK]"]) == 0
    assert "bano caf\ufffd [MASK]" in capsys.readouterr().out
    (tmp_path / "others.txt").write_text("\n".join(OTHERS[:4]))
    files = ["--among", str(tmp_path / "others.txt"), "--out", str(tmp_path / "page.html")]
    asked = ["look", str(models["masked"]), "bano delo\udce9 [MASK]", "--word", "delo\udce9", *files]
    assert main(asked) == 0
    assert '<p class="given">bano delo\ufffd [MASK]</p>' in (tmp_path / "page.html").read_text()
    assert main(["look", str(models["classification"]), "bano", "--target", "\udce9"]) == 2
    assert "Traceback" not in capsys.readouterr().err
