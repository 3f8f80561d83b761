"""The rewards of A-LoL's tasks: which parts each sums, and which number chooses its weights.

| task | parts | chosen by |
|---|---|---|
| comet | p_valid_model | p_valid_model |
| reddit_pos, reddit_neg | fluency, depth, updown, safe, tfidf | their sum |
| wow, faithdial_wow | fluency, faithdial, depth, tfidf | faithdial |
| faithdial | fluency, faithdial, depth, tfidf | their sum |

All parts lie between 0 and 1 and weigh the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Self, get_args

from llm_agents.errors import UserError
from llm_agents.rewards.attributes import AttributeReward, Precision
from llm_agents.rewards.combined import SumReward
from llm_agents.rewards.comet import CometCritic
from llm_agents.rewards.diversity import DiversityReward
from llm_agents.types import Reward

TaskName = Literal["comet", "reddit_pos", "reddit_neg", "wow", "faithdial", "faithdial_wow"]
Component = Literal["p_valid_model", "fluency", "faithdial", "depth", "updown", "safe", "tfidf"]

FINAL = "final_reward"


@dataclass(frozen=True)
class TaskRewards:
    """What a task is scored by.

    Args:
        components: Parts of the sum.
        selected_by: The part that chooses the best weights; ``final_reward`` is the sum.
    """

    components: tuple[Component, ...]
    selected_by: str

    @property
    def max_value(self) -> float:
        """Return the highest sum: the `max_value` of a value head."""
        return float(len(self.components))


_GROUNDED: tuple[Component, ...] = ("fluency", "faithdial", "depth", "tfidf")
_REDDIT: tuple[Component, ...] = ("fluency", "depth", "updown", "safe", "tfidf")

TASKS: Mapping[TaskName, TaskRewards] = MappingProxyType(
    {
        "comet": TaskRewards(("p_valid_model",), "p_valid_model"),
        "reddit_pos": TaskRewards(_REDDIT, FINAL),
        "reddit_neg": TaskRewards(_REDDIT, FINAL),
        "wow": TaskRewards(_GROUNDED, "faithdial"),
        "faithdial": TaskRewards(_GROUNDED, FINAL),
        "faithdial_wow": TaskRewards(_GROUNDED, "faithdial"),
    }
)
_NOT_ON_THE_HUB = {
    "p_valid_model": "the folder that `CometCriticConversion` writes",
    "safe": "the folder of ToxiChat's DialoGPT classifier",
    "tfidf": "the tfidf.json that the task's preparation writes, or its training file",
}


class TaskReward(SumReward):
    """The sum of the named rewards of one of A-LoL's tasks.

    Its constructor is `SumReward`'s; recipes use `from_pretrained`.
    """

    @classmethod
    def from_pretrained(
        cls,
        task: TaskName,
        models: Mapping[str, str] | None = None,
        components: Sequence[str] | None = None,
        pickled_weights: bool = False,
        batch_size: int = 32,
        dtype: Precision = "float32",
        device: str | None = None,
    ) -> Self:
        """Load the parts of a task's reward.

        Args:
            task: Name of the task.
            models: Hub id, folder or file of a part by its name, in place of the paper's;
                ``p_valid_model``, ``safe`` and ``tfidf`` have none on the Hub and must be here.
            components: Parts to load; all of the task's by default. A preparation that fits the
                diversity itself leaves ``tfidf`` out.
            pickled_weights: Allow weights that are only there as a pickle, read without running it.
            batch_size: Texts a pass; the scores do not depend on it.
            dtype: Type of the weights.
            device: Where they run; the accelerator by default, if there is one.

        Raises:
            UserError: A name is unknown, or a part has no model.
        """
        if task not in TASKS:
            raise UserError(f"expected a task of {', '.join(TASKS)}, got {task!r}")
        wanted = list(TASKS[task].components if components is None else components)
        given = dict(models or {})
        _check_names(wanted, given, task)
        plain = {"dtype": dtype, "device": device, "batch_size": batch_size}
        options = {**plain, "pickled_weights": pickled_weights}
        loaders: dict[str, Callable[..., Reward]] = {
            "fluency": AttributeReward.fluency,
            "faithdial": AttributeReward.faithfulness,
            "depth": AttributeReward.engagement,
            "updown": AttributeReward.upvotes,
            "safe": AttributeReward.safety,
        }
        parts: dict[str, Reward] = {}
        for name in wanted:
            place = (given[name],) if name in given else ()
            if name == "tfidf":
                parts[name] = DiversityReward.from_file(*place)
            elif name == "p_valid_model":
                parts[name] = CometCritic.from_pretrained(*place, **plain)  # type: ignore[arg-type]  # the keys of `plain`
            else:
                parts[name] = loaders[name](*place, **options)
        return cls(parts, name=task)


def _check_names(wanted: Sequence[str], given: Mapping[str, str], task: str) -> None:
    """Raise unless every part is known and can be loaded."""
    known = get_args(Component)
    if unknown := sorted((set(wanted) | set(given)) - set(known)):
        raise UserError(f"expected parts of {', '.join(known)}, got {', '.join(unknown)}")
    if unused := sorted(set(given) - set(wanted)):
        raise UserError(
            f"the reward of `{task}` has no part {', '.join(unused)}: leave it out of `models`"
        )
    for name in wanted:
        if name in _NOT_ON_THE_HUB and name not in given:
            raise UserError(f"`{name}` is not on the Hub: give {_NOT_ON_THE_HUB[name]} in `models`")
