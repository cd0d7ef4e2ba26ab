"""Bytes on disks and in object stores: places, durable writes, locks, arrays, blocks, ids.

``layout`` knows every name on disk. May import ``plan`` and the mechanism.
"""
