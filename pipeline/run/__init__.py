"""The conductor: one release from its configuration to its manifest."""
