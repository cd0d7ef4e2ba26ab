"""Tests, in folders that mirror the rooms; what several of them share is in `harness`."""
