"""`bertsmith-run embed|predict|serve`, of lines or over HTTP."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bertsmith.errors import BertsmithError, InputError, printable
from bertsmith.files import output_file, refuse_existing
from bertsmith.runtime import Embedder, Predictor
from bertsmith.runtime.columns import predict_rows
from bertsmith.runtime.encoder import PRECISIONS, ArrayEncoder

_CHUNK = 1024  # lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; a user's mistake ends it with one sentence and status 2."""
    given = _parser().parse_args(arguments)
    try:
        given.run(given)
    except BertsmithError as error:
        print(f"bertsmith-run: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "bertsmith-run", description="Answers of a trained model, without torch."
    )
    commands = parser.add_subparsers(required=True, metavar="embed|predict|serve")
    for name, run, meaning in (
        ("embed", _embed, "a vector for each line of a file"),
        ("predict", _predict, "a prediction for each line of a file: a text, or two with a tab between them"),
        ("serve", _serve, "answers over HTTP"),
    ):
        command = commands.add_parser(name, help=meaning, description=meaning)
        command.add_argument("model", help="the folder of a model, or minilm")
        command.add_argument("--precision", choices=PRECISIONS, help="of the layers' products")
        command.set_defaults(run=run)
        if name == "serve":
            command.add_argument("--host", default="127.0.0.1")
            command.add_argument("--port", type=int, default=8080)
            continue
        command.add_argument("file", nargs="?", default="-", help="lines of UTF-8, by default standard input")
        command.add_argument("--out", type=Path, help="a .npy file" if name == "embed" else "JSON lines")
        if name == "embed":
            command.add_argument("--query", action="store_true", help="texts that are searched for")
    return parser


def _lines(file: str) -> Iterator[list[str]]:
    """The lines of a file or standard input, many at a time."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as content:
            lines = list[str]()
            for number, line in enumerate(content, 1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"{file}, line {number} is not UTF-8. Save it again as UTF-8."
                    ) from error
                lines += text.removesuffix("\n").removesuffix("\r").split("\r")
                if len(lines) >= _CHUNK:
                    yield lines
                    lines = []
            if lines:
                yield lines
    except OSError as error:
        raise InputError(f"{file} can't be read: {error.strerror}.") from error


def _embed(given: argparse.Namespace) -> None:
    if given.out is not None:
        refuse_existing(given.out)
        if given.out.suffix != ".npy":
            raise InputError(f"--out must end in .npy, found {given.out}.")
    embedder = Embedder(given.model, precision=given.precision)
    _tell_choice(embedder)
    embed = embedder.queries if given.query else embedder.documents
    vectors = [embed(lines) for lines in _lines(given.file)]
    if given.out is not None:
        with output_file(given.out) as file:
            table = np.concatenate([np.empty((0, embedder.width), np.float32), *vectors])
            header = np.lib.format.header_data_from_array_1_0(table)
            np.lib.format.write_array_header_1_0(file, header)
            file.write(table.data)  # np.save doesn't say that the disk is full, only how much it wrote
        return
    for vector in (vector for part in vectors for vector in part):
        print(json.dumps(vector.astype(float).tolist()))


def _predict(given: argparse.Namespace) -> None:
    if given.out is not None:
        refuse_existing(given.out)
    predictor = Predictor(given.model, precision=given.precision)
    _tell_choice(predictor)
    lines = list[str]()
    for part in _lines(given.file):
        rows = [
            line.split("\t", 1) if "\t" in line and predictor.reads_pairs is not False else line
            for line in part
        ]
        answers = [
            json.dumps(answer, ensure_ascii=False) for answer in predict_rows(predictor, rows, len(lines) + 1)
        ]
        if given.out is None:
            print("\n".join(answers))
        lines += answers
    if given.out is not None:
        with output_file(given.out) as file:
            file.writelines(f"{line}\n".encode() for line in lines)


def _tell_choice(opened: Embedder | Predictor) -> None:
    """Says what int8 changes, if that was asked for."""
    encoder = opened.engine.encoder
    if isinstance(encoder, ArrayEncoder) and encoder.int8_choice is not None:
        print(f"bertsmith-run: {encoder.int8_choice}", file=sys.stderr)


def _serve(given: argparse.Namespace) -> None:
    from bertsmith.runtime.server import OneModel, serve

    model = OneModel(given.model, given.precision)
    opened = model.embedder or model.predictor
    assert opened is not None
    _tell_choice(opened)
    serve(model, given.host, given.port)


if __name__ == "__main__":
    main()
