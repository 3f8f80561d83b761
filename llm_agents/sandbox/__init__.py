"""Code that a model wrote, run where it can do no harm."""

from llm_agents.sandbox.backends import Backend
from llm_agents.sandbox.box import Sandbox, SandboxUnavailableError
from llm_agents.sandbox.limits import SandboxLimits, SandboxOutcome

__all__ = ["Backend", "Sandbox", "SandboxLimits", "SandboxOutcome", "SandboxUnavailableError"]
