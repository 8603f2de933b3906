"""What the tensors are that go through modules, call by call."""
