"""`index info --verify` finds any file that was changed since it was committed."""

import shutil
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.writer import HINT
from served_models import save_encoder

pytest.importorskip("lancedb")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("index")
    save_encoder(place / "encoder")
    (place / "texts").mkdir()
    for name in ("a", "b"):
        (place / "texts" / f"{name}.txt").write_text(f"bano delo firu {name}. guma kano lelo.")
    out = place / "index"
    Index.build([place / "texts"], out, model=str(place / "encoder"))
    (place / "texts" / "c.txt").write_text("miru bano.")
    (place / "texts" / "a.txt").unlink()
    Index.build([place / "texts"], out, model=str(place / "encoder"))
    return out


def test_a_sound_index_is_found_sound(built: Path) -> None:
    assert Index.open(built).verify() == 2


def test_a_flipped_byte_of_any_file_is_found(built: Path, tmp_path: Path) -> None:
    """In each but the lock, which holds nothing of the index, and the hint that no reader needs."""
    out = Path(shutil.copytree(built, tmp_path / "index"))
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name not in (".lock", HINT)]
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            assert is_damaged(out), (path, place)
        path.unlink()
        assert is_damaged(out), path
        path.write_bytes(content)
    assert Index.open(out).verify() == 2


def is_damaged(out: Path) -> bool:
    try:
        Index.open(out).verify()
    except InputError:
        return True
    return False


def test_one_changed_letter_of_a_stored_passage_is_found(built: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(built, tmp_path / "index"))
    files = [path for path in out.rglob("*.lance") if path.is_file()]
    holding = [path for path in files if b"guma kano" in path.read_bytes()]
    assert holding
    for path in holding:
        path.write_bytes(path.read_bytes().replace(b"guma kano", b"guma kana"))
    with pytest.raises(InputError, match="was damaged since it was committed"):
        Index.open(out).verify()
