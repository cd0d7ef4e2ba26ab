"""The noise: keyed tiles of a correctly rounded Gaussian, and how noisy values are stored.

``sampler`` draws a tile with ``quantile`` and ``resolve``; ``encoding`` chooses the stored type.
Imports the root alone: noise knows of no gallery.
"""
