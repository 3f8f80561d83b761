"""Models behind servers, by name: ``openai:MODEL@URL``. Read in an instant, for refusals too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from llm_agents.errors import UserError

PREFIX = "openai:"
_FORM = "openai:MODEL@URL, such as openai:Qwen/Qwen3-8B@http://127.0.0.1:8000/v1"


def is_served(name: str) -> bool:
    """Return whether a name means a model behind a server."""
    return name.startswith(PREFIX)


@dataclass(frozen=True)
class ServedModel:
    """A model behind an OpenAI-compatible server.

    Args:
        model: The server's name for it.
        endpoint: Address of the server, up to ``/v1``.
    """

    model: str
    endpoint: str

    @classmethod
    def read(cls, name: str) -> ServedModel:
        """Return the model that is called `name`; an address without a path gets ``/v1``.

        Raises:
            UserError: It is no such name, or the address holds what may not be kept.

        Example:
            >>> ServedModel.read("openai:org/model@http://127.0.0.1:8000").endpoint
            'http://127.0.0.1:8000/v1'
        """
        model, at, address = name.removeprefix(PREFIX).rpartition("@http")
        if not at or not model.strip() or not is_served(name):
            raise UserError(f"expected {_FORM}; got no model, or no address after its `@`")
        try:
            parts = urlsplit(f"http{address}")
            is_sound = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_sound = is_sound and (parts.port is None or parts.port > 0)
        except ValueError:
            is_sound = False
        if not is_sound:
            raise UserError(f"expected {_FORM}; the address after the last `@` can't be read")
        if (
            ("@" in model and "://" in model)
            or "@" in parts.netloc
            or parts.query
            or parts.fragment
        ):
            raise UserError(
                f"expected {_FORM}, without user, password or query in the address: a key is read "
                "from an environment variable, see --key-variable"
            )
        path = parts.path.rstrip("/") or "/v1"
        return cls(model, f"{parts.scheme}://{parts.netloc}{path}")

    @property
    def host(self) -> str:
        """Return the host, with its port."""
        return urlsplit(self.endpoint).netloc

    @property
    def label(self) -> str:
        """Return what results call it: the model and the host.

        Example:
            >>> ServedModel("org/model", "http://127.0.0.1:8000/v1").label
            'openai:org/model@127.0.0.1:8000'
        """
        return f"{PREFIX}{self.model}@{self.host}"

    @property
    def folder_name(self) -> str:
        """Return its label as the name of a folder."""
        return re.sub(r"[^\w.@-]+", "--", self.label)
