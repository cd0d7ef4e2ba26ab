"""The mechanism: calibrated settings, noisy blocks, and the arrays that are released."""
