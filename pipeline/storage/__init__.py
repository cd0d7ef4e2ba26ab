"""Bytes on disks and in object stores: places, durable writes, locks, arrays, blocks, ids."""
