"""Publishing a folder on the Hub: checked first, then one commit.

A run of ``publish`` reads the folder, refuses what must not leave the machine, builds the card,
writes what would be sent to a staging folder, and, unless it is a dry run, sends it as one atomic
commit. Sending the same again changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_agents.errors import UserError
from llm_agents.evaluation import Results, RewardResults
from llm_agents.evaluation.results import RESULTS_FILE
from llm_agents.rewards.folder import is_hub_id
from llm_agents.zoo.card import CardFacts, build_card, check_card, merge_cards
from llm_agents.zoo.layout import (
    ADAPTER_CONFIG,
    CARD_FILE,
    INFO_FILE,
    POINTER_FILE,
    RECIPE_FILE,
    REWARD_FILE,
    AdapterInfo,
    is_entry,
    read_json,
    write_json,
)
from llm_agents.zoo.registry import measured

log = logging.getLogger(__name__)

PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz"}
SENT = re.compile(
    r"adapter_config\.json|adapter_base\.json|adapter_model\.safetensors|\w+_head\.(safetensors|json)"
    r"|reward\.json|llm_agents\.json|recipe\.yaml|results\.(json|png)|[\w.-]+_eval_results\.jsonl"
    r"|[\w.-]+\.png|replay\.mp4|LICENSE|(special_tokens_map|added_tokens)\.json"
    r"|tokenizer(_config)?\.json|chat_template\.jinja|\w+\.model|vocab\.json|merges\.txt"
)
TEXTS = {".json", ".jsonl", ".yaml", ".md", ".jinja", ".txt", ""}
SECRET = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
HOME = re.compile(r"/(?:home|Users)/[\w.-]+|[A-Za-z]:\\+Users\\+[\w.-]+")
ABSOLUTE = re.compile(r"(?:file://)?(?:/[\w.@~+-]+){2,}/?|[A-Za-z]:[\\/][^\n]+|~/[^\n]+")


@dataclass(frozen=True)
class PublishReport:
    """What was sent, or would be.

    Args:
        repo_id: Repository on the Hub.
        staged: Folder with exactly the files of the commit.
        files: Their names.
        left_out: Files of the folder that are not part of a publication.
        warnings: What the publisher should know.
        commit: Address of the commit; None in a dry run.
    """

    repo_id: str
    staged: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    commit: str | None


def publish(
    folder: str | Path,
    repo_id: str,
    *,
    dry_run: bool = False,
    base_model: str | None = None,
    license: str | None = None,  # the Hub's word
    datasets: tuple[str, ...] | None = None,
    private: bool = False,
    staging: str | Path | None = None,
    token: str | None = None,
) -> PublishReport:
    """Publish an adapter or a reward model on the Hub.

    Args:
        folder: Folder with an adapter and its ``results.json``.
        repo_id: ``owner/name`` on the Hub; made if it isn't there.
        dry_run: Write what would be sent to the staging folder and send nothing.
        base_model: Hub id of the base, where the folder records only a local path.
        license: Licence identifier; the recipe's ``publish.license``, else ``apache-2.0``.
        datasets: Hub ids of the training data; the recipe's ``publish.datasets`` by default.
        private: Make a new repository private.
        staging: Where what is sent is written; ``publish/<name>`` beside the folder by default.
        token: Access token; the one that ``hf auth login`` stored by default.

    Returns:
        What was sent, or would be.

    Raises:
        UserError: The folder is not fit to be published; every reason is named.
    """
    source = Path(folder)
    for kind, name in (("repository", repo_id), ("base model", base_model or repo_id)):
        if not is_hub_id(name):
            raise UserError(f"expected a {kind} `owner/name`, got `{name}`")
    if not source.is_dir() or not is_entry(source):
        raise UserError(f"expected a folder with an adapter (`{ADAPTER_CONFIG}`), got `{folder}`")
    refuse_unfit(source)
    warnings: list[str] = []
    name = repo_id.rpartition("/")[2]
    staged = Path(staging) if staging else source.parent / "publish" / name
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    left_out = stage_files(source, staged)
    base, revision = map_base(staged, base_model, warnings)
    card = build_card(
        gather_facts(source, repo_id, base, revision, license=license, datasets=datasets)
    )
    (staged / CARD_FILE).write_text(card, encoding="utf8")
    check_card(card)
    refuse_private(staged)
    for warning in warnings:
        log.warning(warning)
    commit = None
    if not dry_run:
        from llm_agents.zoo.sending import send

        commit = send(staged, repo_id, private=private, token=token, merge=merge_cards)
    files = tuple(sorted(path.name for path in staged.iterdir()))
    return PublishReport(repo_id, staged, files, tuple(left_out), tuple(warnings), commit)


def refuse_unfit(folder: Path) -> None:
    """Raise if a folder lacks results, or holds pickles or base weights."""
    faults = []
    if not (folder / RESULTS_FILE).is_file():
        faults.append(f"there is no `{RESULTS_FILE}`: run `lightning evaluate {folder}` first")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    pickles = [path.relative_to(folder).as_posix() for path in files if path.suffix in PICKLES]
    if pickles:
        faults.append(f"pickles may run code where they are loaded: remove {', '.join(pickles)}")
    weights = [
        path.relative_to(folder).as_posix()
        for path in files
        if path.suffix == ".gguf"
        or (path.suffix == ".safetensors" and SENT.fullmatch(path.name) is None)
    ]
    if weights:
        faults.append(
            f"weights of a base model are not ours to publish: remove {', '.join(weights)}"
        )
    if (folder / POINTER_FILE).is_file():
        faults.append(f"its weights are on the Hub already (`{POINTER_FILE}`)")
    links = [path.relative_to(folder).as_posix() for path in files if path.is_symlink()]
    if links:
        faults.append(f"links lead out of the folder: replace {', '.join(links)} by the files")
    if faults:
        raise UserError(f"`{folder}` is not fit to be published: " + "; ".join(faults))


def stage_files(source: Path, staged: Path) -> list[str]:
    """Copy the files of a publication; return the names of the others."""
    left_out = []
    for path in sorted(source.iterdir()):
        if path.is_file() and SENT.fullmatch(path.name):
            shutil.copyfile(path, staged / path.name)
        elif path.name != CARD_FILE and not path.name.startswith("."):
            left_out.append(path.name)
    return left_out


def map_base(
    staged: Path, base_model: str | None, warnings: list[str]
) -> tuple[str | None, str | None]:
    """Write the base's Hub id into the staged files; return it and the revision.

    A local path says nothing to anyone else, and shows a user's name: it is replaced, or left out.
    """
    config: dict[str, Any] = (
        read_json(staged / ADAPTER_CONFIG) if (staged / ADAPTER_CONFIG).is_file() else {}
    )
    recorded = config.get("base_model_name_or_path")
    base = base_model or (recorded if isinstance(recorded, str) and is_base_id(recorded) else None)
    if base is None:
        warnings.append(
            "the base model is not known on the Hub: the card names none. Give `base_model`, its "
            "Hub id, if it has one"
        )
    if config:
        config["base_model_name_or_path"] = base
        write_json(staged / ADAPTER_CONFIG, config)
    for file in (INFO_FILE, REWARD_FILE, "adapter_base.json"):
        if not (staged / file).is_file():
            continue
        values = read_json(staged / file)
        for key in ("base", "base_model_name_or_path", "source"):
            if isinstance(values.get(key), str) and looks_like_path(str(values[key])):
                values[key] = base or ""
        write_json(staged / file, values)
    revision = config.get("revision")
    return base, revision if isinstance(revision, str) else None


def is_base_id(name: str) -> bool:
    """Return whether a recorded base can only be meant as a Hub id, not as a folder here."""
    return is_hub_id(name) and not Path(name).exists()


def looks_like_path(name: str) -> bool:
    """Return whether a recorded base is a place on this machine, rather than an alias or Hub id."""
    return not is_base_id(name) and ("/" in name or "\\" in name or name.startswith("~"))


def gather_facts(
    source: Path,
    repo_id: str,
    base: str | None,
    revision: str | None,
    *,
    license: str | None,  # the Hub's word
    datasets: tuple[str, ...] | None,
) -> CardFacts:
    """Read what the card needs from the folder's files."""
    info = AdapterInfo.read(source)
    path = source / RECIPE_FILE
    recipe = path.read_text(encoding="utf8") if path.is_file() else ""
    loaded = yaml.safe_load(recipe) if recipe.strip() else None
    wanted = (loaded.get("publish") if isinstance(loaded, dict) else None) or {}
    reward = read_json(source / REWARD_FILE) if (source / REWARD_FILE).is_file() else {}
    results = measured(source)
    if results is None:  # `refuse_unfit` has looked before
        raise UserError(f"there is no `{RESULTS_FILE}` in `{source}`")
    if not isinstance(results, Results | RewardResults):
        raise UserError(
            f"expected results on test prompts in `{source}`, got those of games: cards are made "
            "of policies that write and of their rewards"
        )
    template = reward.get("template") or (info.template if info else None) or "alol"
    return CardFacts(
        repo_id=repo_id,
        kind="reward" if reward else "policy",
        base=base,
        revision=revision,
        method=info.method if info else None,
        task=info.task if info else None,
        template=str(template),
        license=license or wanted.get("license") or "apache-2.0",
        datasets=tuple(datasets if datasets is not None else wanted.get("datasets") or ()),
        results=results,
        recipe=recipe,
    )


def refuse_private(staged: Path) -> None:
    """Raise if a text about to be sent holds a secret, a home folder or an absolute path."""
    faults = [
        f"{path.name}, line {line}: {what}"
        for path in sorted(staged.iterdir())
        if path.suffix in TEXTS
        for line, what in private_lines(path)
    ]
    if faults:
        shown = "; ".join(faults[:8]) + (f" and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise UserError(
            f"nothing was sent, since these would tell who and where you are: {shown}. Use paths "
            "relative to the working folder in the recipe"
        )


def private_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers of a text with what is private about them."""
    here = {str(Path.home()), str(Path.cwd()), os.environ.get("HF_HOME", "")} - {"", "/"}
    tokens = {os.environ.get(name, "") for name in ("HF_TOKEN", "OPENAI_API_KEY")} - {""}
    user = re.compile(rf"[/\\]{re.escape(Path.home().name)}(?=[/\\\"'\s]|$)")
    # Dialogues may speak of any path: only this machine's own count in them.
    strict = path.suffix in {".json", ".yaml"} and not path.name.startswith("tokenizer")
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), start=1):
        if SECRET.search(line) or any(token in line for token in tokens):
            yield number, "an access token"
        elif any(place in line for place in here) or user.search(line):
            yield number, "a folder of this machine"
        elif strict and (found := HOME.search(line) or absolute_value(line)):
            yield number, f"the path `{found if isinstance(found, str) else found[0]}`"


def absolute_value(line: str) -> str | None:
    """Return the absolute path among the values of a JSON or YAML line, if there is one."""
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    plain = re.sub(r"^\s*(-\s+|[\w.]+:\s+)+", "", line)
    for text in [*quoted, plain]:
        if ABSOLUTE.fullmatch(text.strip().strip("'\"")):
            return str(json.loads(f'"{text}"')) if "\\\\" in text else text.strip()
    return None
