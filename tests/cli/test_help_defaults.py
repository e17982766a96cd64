"""Defaults that the help names are those of the settings, where they live."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from docstring_parser import parse
from pydantic import BaseModel

from bertsmith.cli import mirror, mirror_learn, serve
from bertsmith.mirror.guard.policy import GuardServerSettings
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.serving.settings import ServingSettings


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (serve.ListeningOptions, ServingSettings),
        (serve.LimitOptions, ServingSettings),
        (mirror.UpstreamOptions, MirrorSettings),
        (mirror.RecordingOptions, MirrorSettings),
        (mirror.AnsweringOptions, MirrorSettings),
        (mirror.PageOptions, MirrorSettings),
        (mirror.serve, MirrorSettings),
        (mirror.guard, GuardServerSettings),
        (mirror_learn.ClaimOptions, LearnSettings),
        (mirror_learn.LearningOptions, LearnSettings),
    ],
)
def test_a_default_in_the_help_is_that_of_the_settings(
    options: type | Callable[..., Any], settings: type[BaseModel]
) -> None:
    named = {
        each.arg_name: default_in(each.description or "") for each in parse(options.__doc__ or "").params
    }
    named = {name: default for name, default in named.items() if default is not None}
    assert named, "the help names no default"
    assert named == {name: written(settings.model_fields[name].default) for name in named}


def default_in(text: str) -> str | None:
    """'Port. Default: 8000; 0 takes a free one.' -> '8000'."""
    if found := re.search(r"Default: (\S+?)[.;,]*(?:\s|$)", text):
        return found[1]
    found = re.search(r"\b(On|Off) by default\.", text)
    return found[1].lower() if found else None


def written(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):  # as the command line takes it
        return ",".join(map(str, default))
    return f"{default:.6g}" if isinstance(default, float) else str(default)
