"""The words of a card: how it is used, what it was made of, what it is not for, whom to cite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_agents import __version__
from llm_agents.envs.registry import engine_extra
from llm_agents.zoo.card_claims import (
    began_with,
    learned_from,
    paid_by,
    rounded_base,
    selected,
    trained_in,
    variant,
)
from llm_agents.zoo.facts import CardFacts
from llm_agents.zoo.provenance import describe

_MOTIF = """@inproceedings{klissarov2024motif,
  title = {Motif: Intrinsic Motivation from Artificial Intelligence Feedback},
  author = {Martin Klissarov and Pierluca D'Oro and Shagun Sodhani and Roberta Raileanu and
            Pierre-Luc Bacon and Pascal Vincent and Amy Zhang and Mikael Henaff},
  booktitle = {ICLR}, year = {2024}, eprint = {2310.00166}, archivePrefix = {arXiv}
}"""
_GLAM = """@inproceedings{carta2023glam,
  title = {Grounding Large Language Models in Interactive Environments with Online Reinforcement
           Learning},
  author = {Thomas Carta and Cl{\\'e}ment Romac and Thomas Wolf and Sylvain Lamprier and
            Olivier Sigaud and Pierre-Yves Oudeyer},
  booktitle = {ICML}, year = {2023}, eprint = {2302.02662}, archivePrefix = {arXiv}
}"""
_A_LOL = """@inproceedings{baheti2024leftover,
  title = {Leftover Lunch: Advantage-based Offline Reinforcement Learning for Language Models},
  author = {Ashutosh Baheti and Ximing Lu and Faeze Brahman and Ronan Le Bras and Maarten Sap and
            Mark Riedl},
  booktitle = {ICLR}, year = {2024}, eprint = {2305.14718}, archivePrefix = {arXiv}
}"""
_TWOSOME = """@inproceedings{tan2024twosome,
  title = {True Knowledge Comes from Practice: Aligning {LLM}s with Embodied Environments via
           Reinforcement Learning},
  author = {Weihao Tan and Wentao Zhang and Shanqi Liu and Longtao Zheng and Xinrun Wang and Bo An},
  booktitle = {ICLR}, year = {2024}, eprint = {2401.14151}, archivePrefix = {arXiv}
}"""
_POAD = """@inproceedings{wen2024poad,
  title = {Reinforcing {LLM} Agents via Policy Optimization with Action Decomposition},
  author = {Muning Wen and Ziyu Wan and Jun Wang and Weinan Zhang and Ying Wen},
  booktitle = {NeurIPS}, year = {2024}, eprint = {2405.15821}, archivePrefix = {arXiv}
}"""
_DPO = """@inproceedings{rafailov2023dpo,
  title = {Direct Preference Optimization: Your Language Model is Secretly a Reward Model},
  author = {Rafael Rafailov and Archit Sharma and Eric Mitchell and Stefano Ermon and
            Christopher D. Manning and Chelsea Finn},
  booktitle = {NeurIPS}, year = {2023}, eprint = {2305.18290}, archivePrefix = {arXiv}
}"""
_PRO = """@inproceedings{song2024pro,
  title = {Preference Ranking Optimization for Human Alignment},
  author = {Feifan Song and Bowen Yu and Minghao Li and Haiyang Yu and Fei Huang and
            Yongbin Li and Houfeng Wang},
  booktitle = {AAAI}, year = {2024}, eprint = {2306.17492}, archivePrefix = {arXiv}
}"""
_DRRN = """@inproceedings{he2016drrn,
  title = {Deep Reinforcement Learning with a Natural Language Action Space},
  author = {Ji He and Jianshu Chen and Xiaodong He and Jianfeng Gao and Lihong Li and Li Deng and
            Mari Ostendorf},
  booktitle = {ACL}, year = {2016}, eprint = {1511.04636}, archivePrefix = {arXiv}
}"""
_BABYAI = """@inproceedings{chevalier2019babyai,
  title = {{BabyAI}: A Platform to Study the Sample Efficiency of Grounded Language Learning},
  author = {Maxime Chevalier-Boisvert and Dzmitry Bahdanau and Salem Lahlou and Lucas Willems and
            Chitwan Saharia and Thien Huu Nguyen and Yoshua Bengio},
  booktitle = {ICLR}, year = {2019}, eprint = {1810.08272}, archivePrefix = {arXiv}
}"""
_PAPERS: Mapping[str, tuple[str, ...]] = {
    "a_lol": (_A_LOL,),
    "cloning": (_GLAM,),
    "dpo": (_DPO,),
    "drrn": (_DRRN, _GLAM),
    "glam": (_GLAM,),
    "motif": (_MOTIF,),
    "poad": (_POAD,),
    "pro": (_PRO,),
    "symbolic_ppo": (_BABYAI, _GLAM),
    "twosome": (_TWOSOME,),
}
"""BibTeX of the papers, by the beginning of a method's name; the longest that fits counts."""

_BASE_LICENSES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": "Apache-2.0",
    "google/flan-t5": "Apache-2.0",
    "gpt2": "MIT",
    "meta-llama/": "Meta's community licence, which goes with every derived work",
    "huggyllama/": "LLaMA's non-commercial research licence",
}
_SOURCE_LICENSES = {
    "Anthropic/hh-rlhf": "MIT",
}
_HEAD = "from llm_agents import load_pretrained\n{imports}\n\n"
_QUESTION = 'question = (Turn("user", "Can you recommend a good book?"),)\n'


def sentence(facts: CardFacts) -> str:
    """Return what it is, in one sentence."""
    base = f"[`{facts.base}`](https://huggingface.co/{facts.base})" if facts.base else "its base"
    if rounded_base(facts):
        base += " (rounded to 4 bits, see below)"
    method = f" trained with {facts.method}" if facts.method else ""
    task = f" on {facts.task}" if facts.task else ""
    if facts.is_messages:
        what = "A reward of game messages"
    elif facts.kind == "agent":
        what = f"An agent, an adapter of {base}," if facts.has_adapter else "An agent, a network"
    else:
        what = f"{'A reward model' if facts.kind == 'reward' else 'An adapter'} of {base}"
    return f"{what}{method}{task}, made with llm_agents {__version__}."


# --- how it is used -------------------------------------------------------------------------------


def usage(facts: CardFacts) -> str:
    """Return the code that loads and uses it: with this package, and with PEFT alone."""
    if facts.is_messages:
        ours = _message_code(facts)
    elif facts.kind == "reward":
        ours = _reward_code(facts)
    elif facts.kind == "agent":
        ours = _agent_code(facts)
    else:
        ours = _policy_code(facts)
    blocks = [f"```python\n{ours}\n```"]
    if facts.kind == "agent":
        blocks.append(
            "or, in a terminal:\n\n"
            f"```bash\nlightning watch {facts.repo_id} --html replay.html\n"
            f"lightning evaluate {facts.repo_id} --episodes 20\n```"
        )
    if facts.base and facts.has_adapter and facts.kind != "reward":
        blocks.append(f"or with PEFT alone:\n\n```python\n{_peft_code(facts)}\n```")
    if _extra(facts):
        blocks.append(f"The world needs the extra: `pip install 'llm-agents[{_extra(facts)}]'`.")
    return "\n\n".join(blocks)


def _policy_code(facts: CardFacts) -> str:
    """Return the code that lets a policy answer."""
    template = f', template="{facts.template}"' if facts.template else ""
    return (
        _HEAD.format(imports="from llm_agents.types import GenerationConfig, Turn")
        + f'policy = load_pretrained("{facts.repo_id}")\n'
        + _QUESTION
        + f"prompt = policy.encode_prompt(question{template})\n"
        + "answer = policy.generate([prompt], GenerationConfig(max_new_tokens=64))[0]\n"
        + "print(policy.decode(answer))"
    )


def _reward_code(facts: CardFacts) -> str:
    """Return the code that scores an answer."""
    return (
        _HEAD.format(imports="from llm_agents.types import Turn")
        + f'reward = load_pretrained("{facts.repo_id}")\n'
        + _QUESTION
        + 'print(reward([question], ["Put it into boiling water for eight minutes."]))'
    )


def _message_code(facts: CardFacts) -> str:
    """Return the code that scores a game message."""
    return (
        "import numpy as np\n"
        + _HEAD.format(imports="").rstrip("\n")
        + f'\n\nreward = load_pretrained("{facts.repo_id}")\n'
        + 'message = b"You find a hidden door.".ljust(256, b"\\0")\n'
        + "print(reward.normalized(np.frombuffer(message, dtype=np.uint8)[None]))"
    )


def _agent_code(facts: CardFacts) -> str:
    """Return the code that lets an agent play."""
    shown = (
        "game.score, game.max_depth, game.num_steps"
        if facts.plays_nethack
        else "game.success, game.discounted_return, game.num_decisions"
    )
    return (
        "from llm_agents import play_pretrained\n\n"
        f'for game in play_pretrained("{facts.repo_id}", episodes=2, seed=1):\n'
        f"    print({shown})"
    )


def _peft_code(facts: CardFacts) -> str:
    """Return the code that loads an adapter without this package."""
    revision = f', revision="{facts.revision}"' if facts.revision else ""
    place = facts.repo_id if "/" in facts.repo_id else f"checkpoints/{facts.repo_id}"
    model = "AutoModelForSeq2SeqLM" if facts.is_seq2seq else "AutoModelForCausalLM"
    return (
        f"from peft import PeftModel\nfrom transformers import {model}\n\n"
        f'base = {model}.from_pretrained("{facts.base}"{revision})\n'
        f'model = PeftModel.from_pretrained(base, "{place}")'
    )


def _extra(facts: CardFacts) -> str | None:
    """Return the extra that brings the world's engine."""
    if facts.plays_nethack:
        return "nethack"
    return engine_extra(facts.task or "") if facts.kind == "agent" else None


def replay_section(facts: CardFacts) -> str:
    """Return the recordings that lie beside the card."""
    if not facts.replays:
        return ""
    lines = ["## Replay", ""]
    if "replay.gif" in facts.replays:
        lines += ["![an episode](replay.gif)", ""]
    others = [name for name in facts.replays if name != "replay.gif"]
    if others:
        named = " and ".join(f"[`{name}`]({name})" for name in others)
        lines += [f"One episode, not chosen among several: {named}.", ""]
    if "replay.html" in facts.replays:
        lines[-2] += (
            " The page needs no network: download it and step through what the agent saw and did."
        )
    return "\n".join([*lines, ""])


# --- what it was made of --------------------------------------------------------------------------


def data_section(facts: CardFacts) -> str:
    """Say what it was trained on, under which licences, and what is known to be wrong with it."""
    if facts.is_messages:
        parts = [_message_data(facts.described)]
    elif facts.kind == "agent":
        parts = [_world_data(facts)]
    else:
        parts = [_dialogue_data(facts)]
    parts += [*variant(facts), *began_with(facts), *rounded_base(facts), *_licenses(facts)]
    return " ".join([*parts, describe(facts.provenance), *selected(facts)])


def _dialogue_data(facts: CardFacts) -> str:
    """Say what a policy or a reward of answers was trained on."""
    named = ", ".join(f"`{name}`" for name in facts.datasets) or "the data that the recipe names"
    dialogues = (
        " Dialogues of the HHA kind hold offensive requests and answers."
        if facts.task == "hha"
        else ""
    )
    template = (
        f"Prompts are written with the template `{facts.template}`."
        if facts.template
        else "How prompts were written is not recorded."
    )
    return f"Trained on {named}. {template}{dialogues} {learned_from(facts)}"


def _world_data(facts: CardFacts) -> str:
    """Say in what an agent was trained."""
    if facts.plays_nethack:
        return (
            f"Trained by playing {facts.task} in the NetHack Learning Environment. "
            f"{paid_by(facts)} NetHack is under the NetHack General Public License; no data of "
            "other players was used."
        )
    return trained_in(facts)


def _message_data(described: Mapping[str, Any]) -> str:
    """Say what a reward of messages was trained on."""
    return (
        f"Trained on {described.get('num_pairs', 0):,} pairs of NetHack messages with the "
        f"preferences of the annotator `{described.get('annotator')}` (digest "
        f"`{described.get('dataset')}`): a language model's opinions, not people's. Where these "
        "pairs come from Motif's published data set, its licence (CC-BY-NC-4.0) goes with the "
        "weights. The reward sees messages alone and knows nothing of what they are said about."
    )


def _licenses(facts: CardFacts) -> list[str]:
    """Return sentences on the licences of sources and base."""
    found = [
        f"`{name}` is under {_SOURCE_LICENSES[name]}."
        for name in facts.datasets
        if name in _SOURCE_LICENSES
    ]
    for name, text in _BASE_LICENSES.items():
        if facts.base and facts.base.startswith(name):
            found.append(f"The base is under {text}.")
    return found


def limits_section(facts: CardFacts) -> str:
    """Say what it is for."""
    if facts.kind == "reward":
        what = "messages of one game" if facts.is_messages else "answers to one prompt"
        return (
            f"For research on learning from rewards. Its scores rank {what}; they are no measure "
            "of truth or of safety."
        )
    if facts.kind == "agent":
        return (
            "For research on agents. It knows the world that it was trained in, under the options "
            "and prompts of its recipe; elsewhere nothing is to be expected that the table does "
            "not show. Its actions are draws: one episode says little."
        )
    return (
        "For research. It may answer wrongly, offensively or unsafely, and is not to be put before "
        "the public without further measures."
    )


def citations(method: str | None) -> str:
    """Return the method's papers first, then this package."""
    fits = [key for key in _PAPERS if method and method.startswith(key)]
    known = _PAPERS[max(fits, key=len)] if fits else ()
    own = f"@software{{llm_agents, title = {{llm\\_agents}}, version = {{{__version__}}}}}"
    return "```bibtex\n" + "\n".join([*known, own]) + "\n```"
