"""Texts → vectors, of a few texts in memory or a table of any size on disk: Embedder and `bertsmith embed`.

In: texts, and an encoder or a static table. Out: float32 vectors, or a Parquet file of them in float32, int8
or bits. Read embedder.py first; text_chunks.py is what texts pass on their way to the model. job.py embeds a
file, shard by shard (shards.py), into what vector_file.py describes; vectors.py makes vectors smaller and
says what that costs.
"""
