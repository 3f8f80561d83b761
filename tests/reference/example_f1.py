"""The A-LoL specification's worked example: four responses of 3, 2, 3 and 1 tokens.

Sequence log-probs are ln .1, ln .36, ln .0005, ln .6 under the policy and ln .16, ln .06, ln .05,
ln .5 under the reference, so the ratios are .625, 6, .01 and 1.2; advantages are .3, .3, .05, −.25.
"""

from __future__ import annotations

PROBS = [[0.50, 0.25, 0.80], [0.90, 0.40, 0.70], [0.05, 0.02, 0.50], [0.60, 0.30, 0.30]]
REF_PROBS = [[0.40, 0.50, 0.80], [0.30, 0.20, 0.10], [0.50, 0.40, 0.25], [0.50, 0.90, 0.90]]
MASK = [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]]
REWARDS = [0.90, 0.80, 0.70, 0.30]
VALUES = [0.60, 0.50, 0.65, 0.55]
LENGTHS = [3, 2, 3, 1]

SEQUENCE_LOG_PROBS = [-2.302585, -1.021651, -7.600902, -0.510826]
REF_SEQUENCE_LOG_PROBS = [-1.832581, -2.813411, -2.995732, -0.693147]
RATIOS = [0.625, 6.0, 0.01, 1.2]
TOKEN_RATIOS = [[1.25, 0.5, 1.0], [3.0, 2.0, 7.0], [0.1, 0.05, 2.0], [1.2, 1 / 3, 1 / 3]]
