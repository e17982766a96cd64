"""What a student is measured by against its teacher, each summed, for the loop divides by the global count.

N tokens, K masked positions, B texts, V vocabulary, H hidden size, D dimensions of a vector.
"""

from torch import Tensor
from torch.nn import functional as F


def soft_target_loss(taught: Tensor, learned: Tensor, temperature: float) -> Tensor:
    """Logits (K, V) of both -> the Kullback-Leibler divergence of what is predicted at a temperature, times
    its square, in nats (Hinton et al. 2015, section 2.1; Sanh et al. 2019, section 2).
    """
    target = (taught.float() / temperature).log_softmax(-1)
    found = (learned.float() / temperature).log_softmax(-1)
    return F.kl_div(found, target, reduction="sum", log_target=True) * temperature**2


def cosine_loss(taught: Tensor, learned: Tensor) -> Tensor:
    """One less the cosine, summed over rows: hidden states (N, H) (Sanh et al. 2019, section 2), or vectors
    (B, D), where it is half of the squared distance of vectors of length 1.
    """
    return (1 - F.cosine_similarity(taught.float(), learned.float(), dim=-1)).sum()
