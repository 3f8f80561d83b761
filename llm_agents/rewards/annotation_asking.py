"""What annotators that ask a language model share: what they are called by, and depend on."""

from __future__ import annotations

from typing import ClassVar

from llm_agents.rewards.annotation_backends import AnnotationBackend
from llm_agents.rewards.annotation_prompts import JudgeTemplate
from llm_agents.rewards.annotator import CaptionAnnotator


class AskingAnnotator(CaptionAnnotator):
    """An annotator of captions with a language model.

    Args:
        backend: The language model.
        goal: What the player is after.
        version: Wording.

    Attributes:
        mode: What the model is asked for.
    """

    mode: ClassVar[str]

    def __init__(self, backend: AnnotationBackend, goal: str, version: str) -> None:
        self.backend, self.goal, self.version = backend, goal, version

    def name_parts(self) -> dict[str, str]:
        """Return what file names may be made of."""
        return {
            "model": self.backend.name,
            "goal": self.goal,
            "version": self.version,
            "mode": self.mode,
        }

    def _identity(
        self, template: JudgeTemplate, prompt: object, **settings: object
    ) -> dict[str, object]:
        """Return what the preferences depend on."""
        return {
            **self.name_parts(),
            "backend": self.backend.identity(),
            "template": template,
            "prompt": prompt,
            **settings,
        }
