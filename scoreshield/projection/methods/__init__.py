"""The projection methods: one file a method, which ends in its record.

A method is its dense form, its blockwise form where it has one, and what is foretold of them. Short
solvers stand in the file itself, longer ones in ``dense`` and ``blockwise``.
"""
