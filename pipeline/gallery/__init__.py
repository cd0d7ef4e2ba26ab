"""Reading private rows: dense galleries and sparse ones.

Nothing after ``perturb`` imports this room.
"""
