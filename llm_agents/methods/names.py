"""Names of methods in results, cards and tables: those that the recipes' file names begin with."""

from __future__ import annotations

_NAMES = {
    "MotifAgent": "motif",
    "MotifReward": "motif_reward",
    "RewardTraining": "reward",
    "SymbolicPPO": "symbolic_ppo",
}


def method_name(method: object) -> str:
    """Return the name of a method: its objective where it has several, else that of its class.

    Args:
        method: A module, or an agent that one has left behind.

    Example:
        >>> method_name(type("SymbolicPPO", (), {})()), method_name(type("POAD", (), {})())
        ('symbolic_ppo', 'poad')
    """
    found = getattr(method, "algorithm", None)
    return found if isinstance(found, str) else name_of_class(type(method).__name__)


def name_of_class(name: str) -> str:
    """Return the name of a method, given that of its class, as a folder keeps it."""
    return _NAMES.get(name, name.lower())
