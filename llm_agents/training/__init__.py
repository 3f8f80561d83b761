"""Runs: folder, checkpoints, progress, and the stages from training to results."""
