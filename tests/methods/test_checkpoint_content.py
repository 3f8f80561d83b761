"""A checkpoint of another program, method or version is refused with what to do."""

from __future__ import annotations

import pytest

from llm_agents.errors import UserError
from llm_agents.methods.checkpoint_content import STATE_KEY, own_state


def test_what_a_method_kept_comes_back() -> None:
    kept = {"shuffle": 1, "frames": 2}
    assert own_state({STATE_KEY: kept}, "shuffle", "frames", writer="a run of X") == kept


@pytest.mark.parametrize("checkpoint", [{}, {STATE_KEY: {}}, {STATE_KEY: {"other": 1}}])
def test_another_methods_checkpoint_is_refused(checkpoint: dict[str, object]) -> None:
    with pytest.raises(UserError, match="was not written by a run of X: start without `--resume`"):
        own_state(checkpoint, "shuffle", "frames", writer="a run of X")


def test_another_versions_checkpoint_names_what_it_lacks() -> None:
    checkpoint = {STATE_KEY: {"shuffle": 1, "frames": 2}}
    with pytest.raises(UserError, match="of a run of X in another version, without `computed`"):
        own_state(checkpoint, "shuffle", "frames", "computed", writer="a run of X")
