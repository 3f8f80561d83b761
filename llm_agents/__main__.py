"""``python -m llm_agents``: the command."""

from __future__ import annotations

import sys

from llm_agents.cli import main

if __name__ == "__main__":
    sys.exit(main())
