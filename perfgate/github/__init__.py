"""perfgate as a GitHub job: what its steps do, so that workflows hold no logic of their own."""
