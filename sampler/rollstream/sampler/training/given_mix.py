"""The mix with which training batches are asked for: refused where no step could have it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.arguments import shares
from rollstream.sampler.decide.choosing.requests import check_mix
from rollstream.sampler.decide.queries.looks import AskEnvironments
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.makers.interface import BatchMaker
from rollstream.sampler.training.makers.mixture import StableMixtureBatchMaker

_log = logging.getLogger("rollstream.sampler")


async def mix_of(
    sampler: SamplerApi, maker: BatchMaker, mix: Mapping[str, float] | None
) -> dict[str, float] | None:
    """The shares to ask with: ``mix``, else as the maker wants them; None: neither has any.

    A warning names environments of the sampler that the maker wants nothing of: nobody else would
    say that their groups wait for ever. Who gives ``mix`` says so himself.

    Raises:
        InvalidRequest: it is no mix, has environments that the sampler does not serve, or some for
            which a mixture has no maker.
        SamplerError: whatever the sampler raises, where there is a mix.
    """
    given = maker.mix if mix is None else mix
    if given is None:
        return None
    asked = shares("mix" if mix is not None else f"mix of {type(maker).__name__}", given)
    served = await sampler._asked(AskEnvironments())
    check_mix(sampler._name, asked, served)
    wanted = {name for name, share in asked.items() if share}
    if mix is not None:
        if isinstance(maker, StableMixtureBatchMaker) and (without := wanted - maker.mix.keys()):
            raise InvalidRequest(
                f"mix gives {sorted(without)} a share, and the mixture has makers for "
                f"{sorted(maker.mix)}; give it one for each, or leave them out of mix"
            )
    elif left_out := [name for name in served if name not in wanted]:
        _log.warning(
            "sampler %r serves %s, of which %s trains on no group: they wait until they are too "
            "old, or too many. Give it a maker for each, take them out of "
            "[samplers.%s] environments, or give mix= to say that it is meant",
            sampler._name,
            left_out,
            type(maker).__name__,
            sampler._name,
        )
    return asked
