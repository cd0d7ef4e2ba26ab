"""What a release says about itself: its schema, how it is built, and whether its numbers agree."""
