"""Puts the trained entries of ``checkpoints/`` into the wheel; the rest is in pyproject.toml."""

from setuptools import find_packages, setup

ENTRIES = "llm_agents.zoo.checkpoints"

setup(
    packages=[*find_packages(include=["llm_agents*"]), ENTRIES],
    package_dir={ENTRIES: "checkpoints"},
)
