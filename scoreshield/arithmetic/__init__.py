"""Exact arithmetic: fixed-point rows, sparse rows, and their inner products as whole numbers.

Imports the root's errors and words alone.
"""
