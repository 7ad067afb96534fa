"""Ray Serve's request router for replicas that remember. Knows Ray's queues. Does not know what a request says."""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from sooner.integrations.ray_affinity import ranked

__all__ = ["AffinityRouter"]


class AffinityRouter(RequestRouter):
    """Sends a request to the replica that its session id prefers, or to the next that has no much longer queue.

    A request without a session id goes to the shortest queue. Any number of routers agree without a word between them.
    """

    _places = 8

    def initialize_state(self, places: int = 8) -> None:
        """``places``: requests that a replica decodes side by side. Beyond them its queue may exceed the shortest by a
        quarter as many before its conversations go elsewhere."""
        self._places = places

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The candidates one by one, in the order in which they are to be asked."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # before all of them are asked once more
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        known = self.replica_queue_len_cache.get
        loads = {name: known(replica.replica_id) or 0 for name, replica in named.items()}
        metadata = pending_request.metadata
        if metadata.session_id:
            order = ranked(metadata.session_id, loads, places=self._places, slack=self._places // 4)
        else:
            order = ranked(metadata.internal_request_id, loads)
        return [[named[name]] for name in order]
