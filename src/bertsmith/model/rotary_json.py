"""Rotary positions and local attention in config.json, which has two forms of them; and their angles.

    old    global_rope_theta, local_rope_theta, global_attn_every_n_layers        (transformers 4)
    new    rope_parameters: {full_attention: {rope_type, rope_theta}, sliding_attention: …}, layer_types

A file may have both. Where they differ it is refused, since readers of one form would compute something else
than readers of the other. We write both.

Scaled angles (gte): a `factor` of rope_type "linear" divides all of them. The authors' "ntk" of factor f is
the base theta * f and then the linear factor f^(2 / D), D the head size (kexue.fm/archives/9706). We write it
so, since transformers has no "ntk".
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bertsmith.arrays import Float32s
from bertsmith.errors import ModelError

_LAYER_TYPES = ("full_attention", "sliding_attention")
_KINDS = {"full_attention": "rope_theta", "sliding_attention": "local_rope_theta"}
_OLD_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_GLOBAL_THETA = 160_000.0  # where config.json has none


@dataclass(frozen=True)
class RotaryKeys:
    """The keys of a config.json for positions, the fields of BertConfig that they set (`values`), and the
    functions that read and write them. `read` raises ModelError for what isn't supported.
    """

    keys: frozenset[str]
    values: frozenset[str]
    read: Callable[[Mapping[str, Any], str], dict[str, Any]]
    write: Callable[[Mapping[str, Any]], dict[str, Any]]


def _read_modern(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """ModernBERT's two thetas and its pattern of layers, as fields of BertConfig. Raises ModelError."""
    _refuse_scaling(values, where)
    fields: dict[str, Any] = {}
    new = values.get("rope_parameters") or {}
    if not isinstance(new, Mapping) or any(new[key] is not None for key in new.keys() - {*_LAYER_TYPES}):
        raise ModelError(
            f"{where}: rope_parameters is {reprlib.repr(new)}; expected an object with "
            f"{' and '.join(_LAYER_TYPES)}, each with a rope_theta."
        )
    for kind, ours in _KINDS.items():
        spellings = {
            _OLD_THETAS[kind]: values.get(_OLD_THETAS[kind]),
            f"rope_parameters.{kind}.rope_theta": _read_theta(
                new.get(kind), f"rope_parameters.{kind}", where
            ),
        }
        theta = _require_equal(spellings, where)
        if theta is not None:
            fields[ours] = theta
    if "local_rope_theta" in values and "local_rope_theta" not in fields:  # null: as the global one
        fields["local_rope_theta"] = fields.get("rope_theta", _GLOBAL_THETA)
    return fields | _read_pattern(values, where)


def _write_modern(config: Mapping[str, Any]) -> dict[str, Any]:
    """ModernBERT's entries of config.json in both forms, the inverse of `_read_modern`."""
    types = layer_types(config)
    thetas = {kind: config[ours] for kind, ours in _KINDS.items()}
    old: dict[str, Any] = {_OLD_THETAS[kind]: theta for kind, theta in thetas.items()}
    if config["layer_types"] is None:
        old["global_attn_every_n_layers"] = config["global_attn_every_n_layers"]
    new = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()}
    return {**old, "rope_parameters": new, "layer_types": list(types)}


def _read_plain(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One theta for all layers: rope_parameters, or the older rope_theta. Raises ModelError."""
    _refuse_scaling(values, where)
    new = _read_theta(values.get("rope_parameters"), "rope_parameters", where)
    theta = _require_equal({"rope_theta": values.get("rope_theta"), "rope_parameters.rope_theta": new}, where)
    size, heads = values.get("head_dim"), values.get("num_attention_heads")
    if size is not None and (not isinstance(heads, int) or size * heads != values.get("hidden_size")):
        raise ModelError(
            f"{where}: head_dim is {size!r}; only hidden_size / num_attention_heads is supported."
        )
    return {} if theta is None else {"rope_theta": theta}


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The type of each layer: `layer_types` where it is given, otherwise full attention in every n-th layer
    from the first on and sliding attention in the others.
    """
    if config["layer_types"] is not None:
        return tuple(config["layer_types"])
    every, count = config["global_attn_every_n_layers"], config["num_hidden_layers"]
    return _repeat_pattern(every, count)


def _repeat_pattern(n: int, count: int) -> tuple[str, ...]:
    return tuple(_LAYER_TYPES[bool(number % n)] for number in range(count))


def _read_pattern(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The pattern of layers as a period n, if it has one, so that both forms give equal configs; otherwise as
    `layer_types`. Raises ModelError.
    """
    listed, every = values.get("layer_types"), values.get("global_attn_every_n_layers")
    if every is not None and (not isinstance(every, int) or every < 1):
        raise ModelError(f"{where}: global_attn_every_n_layers is {every!r}; expected a number from 1 on.")
    if listed is None:
        return {} if every is None else {"global_attn_every_n_layers": every}
    if not isinstance(listed, list) or not listed or any(kind not in _LAYER_TYPES for kind in listed):
        raise ModelError(
            f"{where}: layer_types is {reprlib.repr(listed)}; expected a list of "
            f"{' and '.join(_LAYER_TYPES)}."
        )
    if len(listed) != (count := values.get("num_hidden_layers", len(listed))):
        raise ModelError(f"{where}: layer_types has {len(listed)} entries for {count} layers.")
    if every is not None and tuple(listed) != _repeat_pattern(every, len(listed)):
        raise ModelError(
            f"{where}: global_attn_every_n_layers = {every} and layer_types say different things. "
            "Remove the one that is wrong."
        )
    periods = (n for n in range(1, len(listed) + 1) if tuple(listed) == _repeat_pattern(n, len(listed)))
    period = every or next(periods, None)
    if period is None:
        return {"layer_types": tuple(listed)}
    return {"global_attn_every_n_layers": period}


def _read_theta(parameters: object, name: str, where: str) -> Any:
    if parameters is None:
        return None
    if not isinstance(parameters, Mapping):
        raise ModelError(f"{where}: {name} is {reprlib.repr(parameters)}; expected an object.")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    more = parameters.keys() - {"rope_type", "type", "rope_theta"}
    if kind != "default" or any(parameters[key] is not None for key in more):
        raise ModelError(
            f"{where}: {name} is {reprlib.repr(dict(parameters))}; only plain rotary positions "
            "(rope_type default, with a rope_theta) are supported."
        )
    return parameters.get("rope_theta")


def _require_equal(spellings: Mapping[str, Any], where: str) -> Any:
    """The value that all entries that aren't None agree on; None without any. Raises ModelError where they
    differ.
    """
    entries = {name: value for name, value in spellings.items() if value is not None}
    first = next(iter(entries.values()), None)
    if any(value != first for value in entries.values()):
        pairs = " and ".join(f"{name} = {value!r}" for name, value in entries.items())
        raise ModelError(f"{where}: {pairs} say different things. Remove the one that is wrong.")
    return first


def _read_scaled(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One theta for all layers, and a factor of rope_type linear or ntk. Raises ModelError."""
    kinds, factors, thetas = {}, {}, {"rope_theta": values.get("rope_theta")}
    for name in ("rope_parameters", "rope_scaling"):
        parameters = values.get(name)
        if parameters is not None:
            kinds[f"{name}.rope_type"] = _require_scaling(parameters, name, where)
            factors[f"{name}.factor"] = parameters.get("factor")
            thetas[f"{name}.rope_theta"] = parameters.get("rope_theta")
    kind, factor, theta = (_require_equal(spellings, where) for spellings in (kinds, factors, thetas))
    scaling = {"rope_factor": 1.0 if factor is None else factor}
    if kind != "ntk":
        return scaling if theta is None else scaling | {"rope_theta": theta}
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    for number in (theta, width, heads):
        if not isinstance(number, int | float) or number <= 0:
            raise ModelError(
                f"{where}: rope_scaling of type ntk needs rope_theta, hidden_size and num_attention_heads, "
                "each above 0."
            )
    head_size: float = width / heads  # type: ignore[operator]
    return {"rope_theta": theta * factor, "rope_factor": factor ** (2 / head_size)}


def _require_scaling(parameters: Any, name: str, where: str) -> str:
    """The type of scaling that an object of rotary positions asks for. Raises ModelError."""
    if isinstance(parameters, Mapping):
        kind, factor = (
            parameters.get("rope_type", parameters.get("type", "default")),
            parameters.get("factor"),
        )
        more = parameters.keys() - {"rope_type", "type", "rope_theta", "factor"}
        is_factor = isinstance(factor, int | float) and not isinstance(factor, bool) and factor >= 1
        is_known = is_factor if kind in ("linear", "ntk") else kind == "default" and factor is None
        if is_known and all(parameters[key] is None for key in more):
            return str(kind)
    raise ModelError(
        f"{where}: {name} is {reprlib.repr(parameters)}; only rotary positions of the types default, and "
        "linear and ntk with a factor from 1 on, are supported."
    )


def _write_scaled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of config.json that `_read_scaled` reads back to the same values."""
    plain = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    if config["rope_factor"] == 1:
        return {"rope_parameters": plain}
    return {"rope_parameters": {**plain, "rope_type": "linear", "factor": config["rope_factor"]}}


def _refuse_scaling(values: Mapping[str, Any], where: str) -> None:
    if values.get("rope_scaling") is not None:
        raise ModelError(
            f"{where}: rope_scaling is {reprlib.repr(values['rope_scaling'])}; scaled rotary positions are "
            "not supported."
        )


# ModernBERT: one theta for global and one for local layers, and the pattern of local layers.
BY_LAYER_TYPE = RotaryKeys(
    frozenset(
        {"rope_parameters", "rope_scaling", "layer_types", "global_attn_every_n_layers"}
        | set(_OLD_THETAS.values())
    ),
    frozenset({*_KINDS.values(), "layer_types", "global_attn_every_n_layers"}),
    _read_modern,
    _write_modern,
)
# One theta for all layers.
FOR_ALL_LAYERS = RotaryKeys(
    frozenset({"rope_parameters", "rope_scaling", "rope_theta", "head_dim"}),
    frozenset({"rope_theta"}),
    _read_plain,
    lambda config: {"rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]}},
)
# One theta for all layers, and a factor by which all angles are divided.
SCALED = RotaryKeys(
    frozenset({"rope_parameters", "rope_scaling", "rope_theta"}),
    frozenset({"rope_theta", "rope_factor"}),
    _read_scaled,
    _write_scaled,
)


_FEWEST_POSITIONS = 128  # of a table; longer ones double it


def rotary_tables(theta: float, factor: float, size: int, positions: int) -> tuple[Float32s, Float32s]:
    """The cosines and sines, each (P, D / 2), of the angles of at least so many positions (Su et al. 2021),
    for the kernels. Angles are products of float32, as transformers has them; each value is rounded once, so
    that it is the same whatever library torch has, and without torch.
    """
    length = _FEWEST_POSITIONS
    while length < positions:
        length *= 2
    return _tables(theta, factor, size, length)


@lru_cache(maxsize=32)  # layers share them
def _tables(theta: float, factor: float, size: int, positions: int) -> tuple[Float32s, Float32s]:
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    powers = np.power(theta, exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1) / powers / np.float32(factor)
    angles = np.outer(np.arange(positions, dtype=np.float32), frequencies).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
