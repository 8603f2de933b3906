"""What modules do forward and backward in the user's own loop: tensors, gradients, time, memory."""
