"""What a release is worth, before it is made and after.

``bounds`` and ``forecast`` speak from public sizes; ``metrics``, ``decision`` and ``ranking`` from
scores, where those of clean scores are the curator's alone. Imports ``mechanisms``, ``privacy`` and
the root; ROC curves need scikit-learn, an extra.
"""
