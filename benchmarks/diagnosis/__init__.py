"""Trainings with a planted mistake, and healthy ones: `python -m benchmarks.diagnosis`.

A finding names its problem by a slug of `KINDS`.
"""

KINDS = {
    # numbers
    "nan": "values are NaN; the place is where the first of them appears",
    "inf": "values are Inf, by overflow or by division by zero",
    # gradients
    "no-gradient": "no gradient reaches a parameter: detached, no_grad, or not in the loss",
    "vanishing-gradient": "gradients shrink along the layers until nothing is left",
    "exploding-gradient": "gradients grow along the layers, or from step to step",
    "gradient-accumulates": "gradients of earlier steps are still there: zero_grad is missing",
    "gradient-cleared": "gradients are cleared after the backward, before the optimizer's step",
    "clipped-to-nothing": "clipping leaves almost nothing of the gradient at every step",
    # optimizer
    "not-in-optimizer": "a trainable parameter with a gradient is in no optimizer",
    "replaced-parameter": "the optimizer updates a parameter that the model no longer has",
    "unregistered-module": "layers in a plain list or dict: `parameters()` does not contain them",
    "optimizer-not-stepped": "gradients are computed, and no optimizer ever steps",
    "lr-too-high": "updates are so large that the loss jumps or grows",
    "lr-too-low": "updates are so small that nothing moves",
    "lr-zero": "the learning rate is 0 although the training goes on",
    "lost-updates": "updates are smaller than the precision of the weights",
    "weight-decay-too-strong": "weight decay shrinks the weights towards nothing",
    "scaler-skips": "the GradScaler skips the optimizer's steps",
    "frozen": "parameters do not require a gradient, and the training cannot learn without them",
    # activations
    "dead-units": "units output 0 for every input",
    "saturated": "sigmoid, tanh or softmax is at its limits",
    "growing-activations": "activations grow along the layers or the residual stream",
    "identical-units": "units of a layer have the same weights, and receive the same gradient",
    "constant-output": "the output does not depend on the input",
    "attention-collapse": "attention looks at a single token in almost every row",
    "attention-logit-growth": "attention scores grow from step to step",
    "router-collapse": "a mixture sends almost all tokens to one expert",
    "dropout-drops-all": "dropout drops all values, or almost all",
    "representation-collapse": "embeddings of different inputs are the same, or of low rank",
    # set-up
    "eval-mode": "modules are trained in eval mode",
    "tiny-batch-norm": "batch norm sees too few values per channel",
    "batch-norm-drift": "running statistics are far from those of the batches",
    "train-eval-gap": "evaluation computes something else than training, as with dropout left on",
    "not-frozen": "parameters are trained that the model says are frozen",
    "softmax-before-cross-entropy": "cross entropy gets probabilities instead of logits",
    "nll-without-log-softmax": "NLLLoss gets logits or probabilities instead of log probabilities",
    "sigmoid-before-bce": "BCEWithLogits gets probabilities instead of logits",
    "relu-on-output": "a ReLU cuts off the negative half of a regression output",
    "loss-broadcast": "shapes such as (N, 1) and (N) are broadcast to (N, N) in the loss",
    "module-never-called": "a module with parameters is never called",
    "shared-module": "one module stands in several places by accident, as in `[layer] * 12`",
    "untied-weights": "weights that were tied are now two tensors",
    "inputs-not-normalized": "inputs are far from zero mean and unit scale",
    "constant-input": "the input is the same for every sample",
    "zero-input": "the input is all zeros",
    "repeated-batches": "batches return that were to be drawn anew",
    "batch-size-mismatch": "inputs of one forward have different batch sizes, and are broadcast",
    "labels-out-of-range": "labels are outside of what the loss expects, or all are ignored",
    "dtype-mix": "a part computes in another precision than the rest",
    "softmax-over-batch": "a softmax is taken over the samples instead of the classes",
    "constant-target": "every target is the same",
    # dynamics
    "loss-diverges": "the loss grows without end, or falls without end below zero",
    "loss-spike": "the loss jumps at one step and comes back",
    "loss-plateau": "the loss does not fall although gradients and updates are fine",
    "output-logit-growth": "the logits grow until the loss is not stable",
    "update-growth": "updates double again and again at the same learning rate",
    # ranks
    "ranks-differ": "parameters differ between ranks",
    "straggler": "one rank takes far longer for its steps than the others",
}
