"""What is remembered, and what is forgotten first."""

from __future__ import annotations

from llm_agents.policies.action_memory import Memory


def test_what_was_unused_for_longest_goes_first():
    memory = Memory[str, int](3)
    for number, key in enumerate("abc"):
        memory.put(key, number, 1)
    assert memory.get("a") == 0
    memory.put("d", 3, 1)
    assert list(memory) == ["c", "a", "d"]
    assert memory.get("b") is None
    assert memory.size == 3


def test_a_value_that_is_replaced_gives_its_room_back():
    memory = Memory[str, int](10)
    memory.put("a", 1, 6)
    memory.put("a", 2, 3)
    assert (memory.size, len(memory), memory.get("a")) == (3, 1, 2)


def test_what_is_too_large_is_not_kept_and_drives_nothing_out():
    memory = Memory[str, int](3)
    memory.put("a", 1, 3)
    memory.put("b", 2, 4)
    assert "a" in memory
    assert "b" not in memory
    memory.clear()
    assert (len(memory), memory.size) == (0, 0)
