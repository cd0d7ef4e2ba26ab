"""The projection methods by products alone, written against panels of rows.

``panels`` says what a home of panels must do and keeps them in memory; ``subspace`` is the
eigensolver that all of them share.
"""
