"""What the mechanism demonstrably gives away: an audit of the claim, and attacks on releases."""
