"""Private rows on disk: ``store`` is what every gallery is, ``dense`` and ``sparse`` its two forms.

``open`` opens either. May import ``plan`` and ``storage``.
Nothing after ``perturb`` imports this room.
"""
