"""The mechanism: exact values with noise, its settings for each regime, and what is released."""
