"""What a release will do, counted before it does it: sizes in, counts out, nothing read."""
