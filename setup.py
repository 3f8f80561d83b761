"""Puts recipes, samples and trained entries into the wheel; the rest is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = {
    "llm_agents.data.samples": "llm_agents/data/samples",
    "llm_agents.recipes": "recipes",
    "llm_agents.recipes.overlays": "recipes/overlays",
    "llm_agents.recipes.paper": "recipes/paper",
    "llm_agents.zoo.checkpoints": "checkpoints",
}

setup(packages=[*find_packages(include=["llm_agents*"]), *FOLDERS], package_dir=FOLDERS)
