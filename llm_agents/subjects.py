"""Subjects of a verb: what a name on the command line stands for, told from its files alone.

Whatever can be refused without a model is refused here, before anything heavy is imported: a name
that is nothing, a folder that holds nothing, a world, a judge or data that are not there, options
that mean nothing for what was named, files that can't be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_agents.command_line import player_options
from llm_agents.config.inputs import Input, missing
from llm_agents.entries import (
    AGENT_FILE,
    MESSAGE_REWARD_FILE,
    NETHACK_FILE,
    PUBLISHED,
    REWARD_FILE,
    ZOO,
    entry_called,
    entry_folder,
    find_entry,
    is_entry,
    is_hub_id,
    is_of_here,
    is_whole_model,
)
from llm_agents.errors import UserError
from llm_agents.served_models import is_served
from llm_agents.training.past_runs import (
    RESULTS_FILE,
    known_runs,
    refuse_unwritable,
    run_called,
)

if TYPE_CHECKING:
    import argparse

    from llm_agents.config.reading import Value

SubjectKind = Literal[
    "scripted", "served", "base", "policy", "reward", "messages", "agent", "nethack"
]
"""A player without training; a model behind a server; a model as it is; what writes; judges of
answers and of NetHack's messages; who plays worlds of text, or NetHack."""

SCRIPTED = ("random", "bot", "explorer")
_MARKS: Mapping[str, SubjectKind] = {
    NETHACK_FILE: "nethack",
    AGENT_FILE: "agent",
    REWARD_FILE: "reward",
    MESSAGE_REWARD_FILE: "messages",
}


@dataclass(frozen=True)
class Subject:
    """What a name stands for.

    Args:
        name: As the other parts of this package take it.
        kind: What it is.
    """

    name: str
    kind: SubjectKind

    @property
    def plays(self) -> bool:
        """Return whether it was made to play."""
        return self.kind in ("scripted", "served", "agent", "nethack")


def find_subject(name: str) -> Subject:
    """Return what `name` stands for; what lies on the Hub only is fetched.

    Args:
        name: Zoo name, folder, Hub id, alias of a base model, run (``NEWEST``), scripted player.

    Raises:
        UserError: It stands for nothing; the message says what is near.
    """
    from llm_agents.policies.bundled import ALIASES

    if name in SCRIPTED:
        return Subject(name, "scripted")
    if is_served(name):
        return Subject(name, "served")
    name = run_called(name)
    if name in ALIASES or is_whole_model(Path(name).expanduser()):
        return Subject(name, "base")
    if is_of_here(name) and find_entry(name) is None:
        raise UserError(f"there is no folder `{name}` here{known_runs(name)}")
    from llm_agents.zoo.hub import find_folder

    folder = find_folder(name)
    if is_whole_model(folder):
        return Subject(name, "base")
    kinds = (kind for file, kind in _MARKS.items() if (folder / file).is_file())
    return Subject(name, next(kinds, "policy"))


def refuse_options(name: str, options: Mapping[str, object], kind: str) -> None:
    """Refuse options that mean nothing for what was named.

    Args:
        name: What was named.
        options: From each option to what was given.
        kind: What `name` does, for the message.

    Raises:
        UserError: One of them was given.
    """
    wrong = [option for option, value in options.items() if value]
    if wrong:
        raise UserError(f"`{name}` {kind}: leave {wrong[0]} out")


def check_worlds(worlds: Iterable[str], subject: Subject) -> None:
    """Refuse worlds that are not there, or that the subject can't play.

    Raises:
        UserError: Names the world and those that are near.
    """
    for world in worlds:
        if subject.kind == "nethack" or subject.name == "explorer":
            check_task(world, subject.name)
        else:
            from llm_agents.envs.registry import check_world

            check_world(world, imports=True)


def check_task(task: str, player: str) -> None:
    """Refuse what is no task of NetHack.

    Raises:
        UserError: Names those that there are.
    """
    from llm_agents.envs.nethack_tasks import TASKS

    if task not in TASKS:
        raise UserError(
            f"expected a task of NetHack for `{player}`, got `{task}`; known: {', '.join(TASKS)}"
        )


def is_task(world: str) -> bool:
    """Return whether a name is that of a task of NetHack."""
    from llm_agents.envs.nethack_tasks import TASKS

    return world in TASKS


def check_inputs(texts: Iterable[str], kind: Input, option: str) -> None:
    """Refuse data, rewards or models that are not there.

    Args:
        texts: What was given after the option.
        kind: What they are to name.
        option: Its name, for the message.

    Raises:
        UserError: Says which, and what is near.
    """
    for text in texts:
        message = missing(text, kind)
        if message is not None:
            raise UserError(f"{option}: {message}")


def check_judge(reward: str) -> None:
    """Refuse a judge of answers that is not there: no function, no trained reward.

    Raises:
        UserError: Says what is near.
    """
    if ":" in reward and not reward.startswith(ZOO):
        return  # a function of the user's own, imported with everything else
    check_inputs([reward], "trained", "--reward")
    found = entry_folder(Path(reward).expanduser()) if Path(reward).is_dir() else None
    marks = (REWARD_FILE, MESSAGE_REWARD_FILE)
    if found is not None and not any((found / mark).is_file() for mark in marks):
        raise UserError(f"expected a reward model after --reward, but `{reward}` judges nothing")


def names_reward(recipe: Mapping[str, Value]) -> bool:
    """Return whether a recipe says by which reward answers are judged."""
    for section, inside in (("evaluation", ()), ("model", ("init_args",))):
        node: Value = recipe.get(section)
        for part in (*inside, "reward"):
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            return True
    return False


def check_outputs(options: Mapping[str, str | Path | None], *, are_files: bool) -> None:
    """Refuse files or folders that can't be written.

    Args:
        options: From each option to where it writes; None if it wasn't given.
        are_files: Whether they name files rather than folders.

    Raises:
        UserError: Names the option, the place and the reason.
    """
    for option, place in options.items():
        if place is None:
            continue
        path = Path(place).expanduser()
        if are_files and path.is_dir():
            raise UserError(f"expected a file after {option}, but {path} is a folder")
        refuse_unwritable(path.parent if are_files else path, option)


def check_watched(name: str, env: str | None, reward: str | None, seen: Subject) -> None:
    """Refuse to watch what plays nothing, or with a reward that judges nothing there.

    Raises:
        UserError: Says which verb shows it.
    """
    if seen.kind == "served" and env is None:
        raise UserError(f"nothing says in which world `{name}` is to play: give `--env`")
    if seen.name == "bot":
        raise UserError(
            "`bot` can't be watched: it plays whole episodes at once; `lightning evaluate bot "
            "--env WORLD` lets it play"
        )
    if seen.plays or (env is not None and seen.kind in ("policy", "base")):
        world = env or ("NetHackScore-v1" if seen.kind == "scripted" else None)
        if world is not None and not (seen.name == "random" and is_task(world)):
            check_worlds([world], seen)
        in_game = seen.kind == "nethack" or (world is not None and is_task(world))
        if reward is not None and not in_game:
            shown = env or name
            raise UserError(f"expected no `--reward`: `{shown}` has no messages that one is for")
        check_inputs([reward] if reward else [], "trained", "--reward")
        return
    if seen.kind in ("reward", "messages"):
        raise UserError(
            f"expected an agent, but `{name}` judges texts and plays nothing: `lightning evaluate "
            f"{name}` says how well it judges"
        )
    raise UserError(
        f"expected an agent, but `{name}` writes answers and was not trained in a world: "
        f"`lightning evaluate {name}` scores what it answers, and with `--env WORLD` it plays "
        "without training"
    )


def run_folders(runs: Sequence[str], marks: Sequence[str], verb: str) -> list[str]:
    """Return the arguments ``[LABEL=]RUN`` of a verb with the folders that they stand for.

    Args:
        runs: As they were typed.
        marks: Patterns of files of which a run's folder holds one.
        verb: For the message.

    Raises:
        UserError: One of them is no folder, or holds none of the files.
    """
    found = []
    for run in runs:
        label, equals, name = run.rpartition("=")
        if Path(run).is_dir():  # a path may hold the sign
            label, equals, name = "", "", run
        folder = Path(run_called(name)).expanduser()
        if not folder.is_dir():
            inside = entry_called(name)  # it holds results as a run does
            if inside is None:
                raise UserError(
                    f"expected the folder of a run, or the name of its recipe, but there is none "
                    f"at `{name}`{known_runs(name)}"
                )
            folder = inside
        if not any(any(folder.glob(mark)) for mark in marks):
            raise UserError(
                f"expected the folder of a finished run, but `{folder}` holds no "
                f"{' or '.join(marks)}: `lightning {verb}` reads what runs leave behind; finish "
                "one with `lightning run RECIPE --resume auto`"
            )
        found.append(f"{label}{equals}{folder}")
    return found


def trained_folder(name: str, *, needs_results: bool = False) -> Path:
    """Return the folder of what was trained, for verbs that keep or send it.

    Args:
        name: Folder of a run or of what it left, or the name of a run.
        needs_results: Refuse what was not measured.

    Raises:
        UserError: There is no such folder, or it holds nothing of that.
    """
    folder = Path(run_called(name)).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"expected a folder with an adapter, a reward or an agent, but there is none at "
            f"`{name}`: `lightning zoo list` shows what was trained here"
        )
    inside = entry_folder(folder)
    if not is_entry(inside) and not is_whole_model(inside):
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"expected a folder with an adapter, a reward or an agent, but `{folder}` holds {held}"
        )
    places = (inside, folder)
    if needs_results and not any((place / RESULTS_FILE).is_file() for place in places):
        raise UserError(
            f"there is no `{RESULTS_FILE}` in `{inside}`: run `lightning evaluate {inside}` first"
        )
    return folder


def check_repository(name: str, option: str) -> None:
    """Refuse what can't be the name of a repository on the Hub.

    Raises:
        UserError: Says what one looks like.
    """
    if not is_hub_id(name):
        raise UserError(f"{option}: expected a Hub id OWNER/NAME, got `{name}`")


def check_pulled(name: str, to: str | None) -> None:
    """Refuse to fetch what is not on the Hub, or where it can't be written.

    Raises:
        UserError: Says what is near.
    """
    plain = name.removeprefix(ZOO)
    if plain not in PUBLISHED and not is_hub_id(plain):
        from llm_agents.zoo.registry import show

        if "/" in plain or show(plain).repo_id is None:
            raise UserError(f"expected a Hub id OWNER/NAME, or a zoo name on the Hub, got `{name}`")
    check_outputs({"--to": to or "checkpoints"}, are_files=False)


def recipe_file(subject: Subject) -> Path | None:
    """Return the recipe that a subject was trained with; None if there is none.

    Raises:
        UserError: It came from a stranger and names code that is not this package's.
    """
    if subject.kind in ("scripted", "served", "base"):
        return None
    from llm_agents.zoo.foreign import recipe_of

    return recipe_of(subject.name)


def plays_worlds(given: argparse.Namespace, subject: Subject, recipe: dict[str, Value]) -> bool:
    """Return whether ``lightning evaluate`` is to play worlds.

    Args:
        given: Its options.
        subject: What was named.
        recipe: What it was trained with.

    Raises:
        UserError: An option is of the other kind, or a world is not there.
    """
    of_worlds = {
        "--env": given.env,
        "--episodes": given.episodes,
        "--suite": given.suite,
        "--behaviour": given.behaviour,
    }
    of_prompts = {
        "--data": given.data,
        "--reward": given.reward,
        "--num-prompts": given.num_prompts,
        "--against": given.against,
        "--judge": given.judge,
    }
    plays = True
    if subject.kind == "nethack":  # its messages may be judged by a reward
        of_worlds = {"--behaviour": given.behaviour, "--suite": given.suite}
        of_prompts = {**of_prompts, "--reward": None}
        refuse_options(given.name, {**of_worlds, **of_prompts}, "plays NetHack")
    else:
        plays = subject.plays or bool(given.env or given.suite or given.policy)
        kind = "plays worlds" if plays else "answers prompts, unless --env names a world"
        options = [name for name in player_options(given) if name != "max_new_tokens"]
        of_worlds |= {f"--{name.replace('_', '-')}": True for name in options}
        refuse_options(given.name, of_prompts if plays else of_worlds, kind)
    if subject.kind == "served" and given.suite:
        raise UserError(f"--suite tests what was trained: leave it out for `{given.name}`")
    check_worlds(given.env, subject)
    if subject.kind in ("scripted", "served") and not given.env and not recipe:
        raise UserError(f"nothing says in which world `{given.name}` is to play: give `--env`")
    check_outputs({"--out": given.out or "evaluations"}, are_files=False)
    return plays


def check_answers(given: argparse.Namespace, subject: Subject, recipe: dict[str, Value]) -> None:
    """Refuse data, judges and rivals that are not there; name the rival as others take it.

    Args: As of `plays_worlds`.

    Raises:
        UserError: Says which, and what is near.
    """
    if subject.kind == "reward" and (given.against or given.reward):
        raise UserError(
            f"`{given.name}` is a reward model, which is compared with the data's own preferences: "
            "leave `--against` and `--reward` out"
        )
    check_inputs(given.data, "folder" if subject.kind == "messages" else "data", "--data")
    if given.reward is not None:
        check_judge(given.reward)
    elif subject.kind in ("policy", "base") and not names_reward(recipe):
        raise UserError(
            f"no recipe says by which reward `{given.name}` is judged: give `--reward` with a "
            "reward model's name or `package.module:function`"
        )
    given.against = [find_subject(name).name for name in given.against]
