"""Which smaller models are tried: a static table, fewer layers, and narrower ones."""

from dataclasses import dataclass

from bertsmith.model.config import BertConfig

_SHARES = (2 / 3, 1 / 2, 1 / 3)  # of the layers, above the last few
_LAST = (3, 2, 1)


STATIC = "static"


@dataclass(frozen=True)
class Candidate:
    """`name` as tables show it, `slug` as its folder is called. `layers` is 0 for a static
    table; `width` and the neurons of `feed_forward` parts None for the teacher's.
    """

    name: str
    slug: str
    layers: int
    width: int | None = None
    feed_forward: int | None = None


def ladder(config: BertConfig, *, static: bool = False) -> list[Candidate]:
    """The quickest to train first. `static`: the task can be answered from a static table."""
    whole = config.num_hidden_layers
    counts = {round(share * whole) for share in _SHARES} | set(_LAST)
    found = [_by_layers(count) for count in sorted(counts) if 1 <= count < whole]
    if narrow := _half_width(config):
        layers = max(whole // 2, 1)
        name = f"{_counted(layers)} of {narrow}"
        found.append(Candidate(name, f"layers-{layers}-width-{narrow}", layers, narrow))
    if whole > 2:
        layers, neurons = round(whole / 3), config.intermediate_size // 3
        name = f"{_counted(layers)}, a third of the feed-forward"
        found.append(Candidate(name, f"layers-{layers}-feed-forward-{neurons}", layers, None, neurons))
    found.sort(key=lambda each: (_products(each, config), each.layers))
    return [Candidate("static table", STATIC, 0), *found] if static else found


def _products(candidate: Candidate, config: BertConfig) -> int:
    """How many multiplications a token costs, in products of attention and of feed-forward parts."""
    width = candidate.width or config.hidden_size
    neurons = candidate.feed_forward or config.intermediate_size * width // config.hidden_size
    gates = 2 if config.feed_forward == "gated" else 1
    return candidate.layers * width * (4 * width + (gates + 1) * neurons)


def _by_layers(count: int) -> Candidate:
    return Candidate(_counted(count), f"layers-{count}", count)


def _counted(layers: int) -> str:
    return f"{layers} layer{'' if layers == 1 else 's'}"


def _half_width(config: BertConfig) -> int | None:
    """Half of the heads, of their size; None where there is an odd number of them."""
    heads = config.num_attention_heads
    return config.head_size * heads // 2 if heads % 2 == 0 else None
