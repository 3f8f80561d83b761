"""Levels of BabyAI's forks with two rooms or four, which GLAM's experiments do not need.

They are drawn like the fork's, not draw for draw: a seed shows another world than it did there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal

from llm_agents.envs.babyai_engine import Engine, Level, verifier

Form = Literal["action", "both", "sequence"]
_LEVEL_GENERATOR = "minigrid.envs.babyai.core.levelgen"


def _maze(
    engine: Any,  # noqa: ANN401  (LevelGen is not typed)
    *,
    kinds: tuple[str, ...],
    form: Form,
    open_doors: bool,
) -> None:
    """Fill rooms and ask for one action, for two in any order, or for two in order.

    Args:
        engine: An engine of minigrid's ``LevelGen``.
        kinds: Of the actions: the first and the second of `both`, any of the others.
        form: Of the goal.
        open_doors: Whether all doors are open at the start.
    """
    import_module(_LEVEL_GENERATOR).LevelGen.gen_mission(engine)
    words = verifier()
    if form == "both":
        engine.instrs = words.AndInstr(*(engine.rand_instr((kind,), ("action",)) for kind in kinds))
    elif form == "sequence":
        pair = [engine.rand_instr(kinds, ("action",)) for _ in range(2)]
        order = engine._rand_elem(("before", "after"))
        engine.instrs = (words.BeforeInstr if order == "before" else words.AfterInstr)(*pair)
    if open_doors:
        engine.open_all_doors()


def _level(
    size: tuple[int, int],
    kinds: tuple[str, ...],
    *,
    form: Form = "action",
    num_objects: int = 8,
    locked: float = 0.0,
    may_unlock: bool = False,
    open_doors: bool = False,
) -> Level:
    """Return a level of so many rooms and rows of rooms; its goals name colors."""
    return Level(
        partial(_maze, kinds=kinds, form=form, open_doors=open_doors),
        entry_point=f"{_LEVEL_GENERATOR}:LevelGen",
        options={
            "num_cols": size[0],
            "num_rows": size[1],
            "num_dists": num_objects,
            "locked_room_prob": locked,
            "locations": False,
            "unblocking": False,
            "implicit_unlock": may_unlock,
            "action_kinds": kinds,
            "instr_kinds": ("action",),
        },
        names_colors=True,
    )


def _put_next(engine: Engine) -> None:
    """Fill nine rooms and ask to put one object next to another."""
    engine.place_agent()
    engine.connect_all()
    objects = engine.add_distractors(num_distractors=18, all_unique=False)
    engine.check_objs_reachable()
    moved, fixed = engine._rand_subset(objects, 2)
    words = verifier()
    engine.instrs = words.PutNextInstr(
        words.ObjDesc(moved.type, moved.color), words.ObjDesc(fixed.type, fixed.color)
    )


def _levels() -> Mapping[str, Level]:
    """Return the levels by name."""
    found = {
        "GoToLocal2": _level((1, 1), ("goto", "goto"), form="both", may_unlock=True),
        "PickupLocal": _level((1, 1), ("pickup",)),
        "PutNext": Level(_put_next, num_cols=3, num_rows=3),
        "OpenTwoDoorsDebug": Level(
            entry_point="minigrid.envs.babyai.open:OpenTwoDoors", options={"strict": True}
        ),
    }
    for name, size in (("Medium", (2, 1)), ("Large", (2, 2))):
        found |= {
            f"GoTo{name}": _level(size, ("goto",)),
            f"GoTo{name}Open": _level(size, ("goto",), open_doors=True),
            f"Pickup{name}": _level(size, ("pickup",), locked=0.5),
            f"PickupOpen{name}": _level(size, ("pickup", "open"), locked=0.5),
            f"PickupOpenPutNext{name}": _level(size, ("putnext", "pickup", "open"), locked=0.5),
            f"PutNext{name}": _level(size, ("putnext",)),
            f"OpenGoTo{name}": _level(size, ("goto", "open"), num_objects=5),
            f"OpenAndPickup{name}": _level(size, ("open", "pickup"), form="both", num_objects=5),
            f"SynthThenSynth{name}": _level(size, ("open", "pickup", "putnext"), form="sequence"),
        }
    found["UnlockMedium"] = _level((2, 1), ("open",), locked=1.0, may_unlock=True)
    found["SynthMedium"] = Level(
        entry_point="minigrid.envs.babyai.synth:Synth",
        options={"num_rows": 1, "num_cols": 2, "num_dists": 8},
    )
    for room in (8, 12, 16, 20):
        found[f"1RoomS{room}"] = Level(
            entry_point="minigrid.envs.babyai.other:OneRoomS8", options={"room_size": room}
        )
    return found


MAZES: Final = _levels()
