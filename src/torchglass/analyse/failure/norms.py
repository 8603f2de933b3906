"""Why normalisations refuse what they are given."""

from __future__ import annotations

from torchglass.analyse.failure.scene import Scene, Verdict, across, first_of, product, times


def batch_norm(scene: Scene) -> Verdict | None:
    """There are as many channels as running means, and several values of each."""
    given = scene["input"]
    held = scene["running_mean"] or scene["weight"]
    if given is None or len(given.shape) < 2:
        return None
    channels = given.shape[1]
    if held is not None and len(held.shape) == 1 and held.shape != (channels,):
        return _channels(scene, held.shape[0], "num_features")
    values = product(given.shape) // max(channels, 1)
    if scene.settings.get("training") is True and values == 1:
        fits = ["give it a batch of two or more"]
        if scene["running_mean"] is not None:
            fits.append("call model.eval() first: it then uses its running statistics")
        return Verdict(
            why=f"in training mode {scene.subject} takes mean and variance over the batch, and "
            f"{times(given.shape)} has a single value for each channel",
            fits=tuple(fits),
        )
    return None


def layer_norm(scene: Scene) -> Verdict | None:
    """The input ends with the shape that is normalised."""
    given, wanted = scene["input"], scene.numbers("normalized_shape")
    if given is None or not given.shape or not wanted or given.shape[-len(wanted) :] == wanted:
        return None
    count = len(wanted)
    fits = [f"give it an input of {times((*given.shape[:-count], *wanted))}"]
    if len(given.shape) >= count and not scene.has_worked and scene.owner is not None:
        ends = given.shape[-count:]
        fits.append(f"make the layer a {scene.owner.kind} over {ends[0] if count == 1 else ends}")
    which = "the last dimension" if count == 1 else f"the last {count} dimensions"
    return Verdict(
        why=f"{scene.subject} normalises over {across(wanted)}, which must be {which} of its input "
        f"{times(given.shape)}",
        fits=tuple(fits),
        sizes=(("input", -1),),
    )


def group_norm(scene: Scene) -> Verdict | None:
    """The channels are as many as the weights, and can be shared out among the groups."""
    given, weight = scene["input"], scene["weight"]
    groups = first_of(scene.numbers("num_groups"), 1)
    if given is None or len(given.shape) < 2:
        return None
    channels = given.shape[1]
    if weight is not None and len(weight.shape) == 1 and weight.shape != (channels,):
        return _channels(scene, weight.shape[0], "num_channels", groups)
    if groups and channels % groups:
        divisors = [count for count in range(1, channels + 1) if channels % count == 0]
        return Verdict(
            why=f"{channels} channels of {times(given.shape)} cannot be shared out among "
            f"{groups} groups",
            fits=(f"a number of groups that divides {channels}: {', '.join(map(str, divisors))}",),
            sizes=(("input", 1),),
        )
    return None


def _channels(scene: Scene, wanted: int, setting: str, groups: int = 1) -> Verdict:
    given = scene["input"]
    assert given is not None
    shape = given.shape
    found = shape[1]
    fits = [f"give it an input of {times((shape[0], wanted, *shape[2:]))}"]
    if shape[-1] == wanted and len(shape) == 3:
        moved = times((shape[0], shape[2], shape[1]))
        fits = [f"the channels seem to stand last; input.transpose(1, 2) is {moved}"]
    elif scene.owner is not None and not scene.has_worked and found % groups == 0:
        fits.append(f"make the layer a {scene.owner.kind} with {setting}={found}")
    return Verdict(
        why=f"{scene.subject} has {setting}={wanted}, and its input {times(shape)} has {found} "
        f"channels in dimension 1",
        fits=tuple(fits),
        sizes=(("input", 1),),
    )


_RANKS = {"1d": ((2, 3), "N×C or N×C×L"), "2d": ((4,), "N×C×H×W"), "3d": ((5,), "N×C×D×H×W")}


def norm_module(scene: Scene) -> Verdict | None:
    """A batch norm module looks at the number of dimensions before it begins."""
    given = next(iter(scene.given), None)
    expected = _RANKS.get(scene.function[-2:])
    if given is None or expected is None or len(given.shape) in expected[0]:
        return None
    rank = len(given.shape)
    kind = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}.get(rank, "")
    is_batch_norm = scene.function.startswith("BatchNorm") and kind
    return Verdict(
        why=f"{scene.subject} takes {expected[1]}, and was given {times(given.shape)}, "
        f"which has {rank} dimension{'s' * (rank != 1)}",
        fits=(f"{kind} takes {times(given.shape)}",) if is_batch_norm else (),
    )


def recurrent_module(scene: Scene) -> Verdict | None:
    """A recurrent module looks at the size of its input before it begins."""
    return _module_takes(scene, "weight_ih_l0", "input_size")


def attention_module(scene: Scene) -> Verdict | None:
    """Attention looks at the length of the queries before it begins."""
    return _module_takes(scene, "in_proj_weight", "embed_dim")


def _module_takes(scene: Scene, weight: str, setting: str) -> Verdict | None:
    """The last dimension of the first input is the last of one of the module's weights."""
    given = next(iter(scene.given), None)
    held = {slot.name: slot.spec.shape for slot in scene.layer.slots} if scene.layer else {}
    shape = held.get(weight)
    if given is None or not given.shape or not shape or shape[-1] == given.shape[-1]:
        return None
    wanted, found = shape[-1], given.shape[-1]
    which = "first input" if len(scene.given) > 1 else "input"
    fits = [f"give it {times((*given.shape[:-1], wanted))}"]
    if not scene.has_worked:
        fits.append(f"make it one with {setting}={found}")
    return Verdict(
        why=f"{scene.subject} has {setting}={wanted}, and the last dimension of its {which} "
        f"{times(given.shape)} is {found}",
        fits=tuple(fits),
        sizes=((given.name, -1),),
    )
