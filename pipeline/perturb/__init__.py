"""The last reader of records: noisy blocks, and the key that makes them."""
