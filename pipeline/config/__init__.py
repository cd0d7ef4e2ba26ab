"""The settings of a release: strict models, their YAML, and faults told in words."""
