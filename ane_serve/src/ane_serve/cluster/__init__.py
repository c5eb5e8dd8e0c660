"""One model on several machines: ranges of its layers as Ray actors, requests in a pipeline.

    from ane_serve.cluster.connection import joined
    from ane_serve.cluster.pipeline import ClusterPipeline

    with joined("auto"), ClusterPipeline("bundle") as pipeline:
        session = pipeline.session()
        print(session.generate("What is the capital of France?").text)

Every machine loads the shards of its own range and keeps their caches, a set for each session. What
goes over the network is the hidden state: 2 C bytes of a token to a machine and as many back. The
host, which is whoever made the pipeline, has the embedding, the head and the text: logits (4 V
bytes) would be some hundred times as much. Sessions work at the same time, each from a thread of
its own, and so does every machine, on another session's token.

Placement, failure detection and the dashboard are Ray's (docs.ray.io): `ray start --head` on one
machine and `ray start --address=HOST:6379` on the others come before. Ray trusts its network:
whoever reaches its ports runs code there.

Told of in the appendix "The libraries, name by name".
Letters: C hidden size, V vocabulary.
"""
