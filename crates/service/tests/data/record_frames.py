#!/usr/bin/env python3
"""Writes recorded_frames.txt: what the engines' own publishers put on the wire, frame by frame.

Not part of any build or test run; recorded_frames.md says how to run it. It loads the one event
module of an engine with stand-ins for what that module imports, starts the engine's publisher on
in-process sockets, publishes a fixed list of events, and writes down every message that a
subscriber and an asker of replays receive. It changes nothing of what the publisher sends.
"""

import hashlib
import importlib.util
import logging
import sys
import types

import zmq

TIME = 1_700_000_000.25
MEDIA = hashlib.sha256(b"a picture").hexdigest()
EMBEDS = hashlib.sha256(b"a prompt of embeddings").digest()


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            stand_in(parent)
        setattr(sys.modules[parent], leaf, module)


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Config(types.SimpleNamespace):
    pass


def load_vllm(path):
    stand_in("vllm.config.kv_events", KVEventsConfig=Config)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    unused = dict.fromkeys(["get_ip", "get_tcp_uri", "is_valid_ipv6_address", "split_zmq_path"])
    stand_in("vllm.utils.network_utils", **unused)
    stand_in("vllm.v1.core.kv_cache_utils", ExternalBlockHash=bytes | int)
    return load("vllm_kv_events", path)


def load_sglang(path):
    stand_in("sglang.srt.runtime_context", get_parallel=None)
    stand_in("sglang.srt.utils.network", NetworkAddress=None)
    return load("sglang_kv_events", path)


def digest(label):
    """The name of a block: nobody but the engine knows how it is made, so any digest will do."""
    return hashlib.sha256(label.encode()).digest()


def as_bytes(label):
    return digest(label)


def as_unsigned(label):
    return int.from_bytes(digest(label), "big") & ((1 << 64) - 1)


def as_signed(label):
    return int.from_bytes(digest(label)[:8], "big", signed=True)


def vllm_batches(engine, name):
    """One batch an entry. Blocks of 4 tokens; a block is called by its last token."""

    def stored(labels, parent, tokens, **more):
        fields = {
            "block_hashes": [name(label) for label in labels],
            "parent_block_hash": name(parent) if parent else None,
            "token_ids": list(tokens),
            "block_size": 4,
            "lora_id": None,
            "medium": engine.MEDIUM_GPU,
            "lora_name": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        return engine.BlockStored(**(fields | more))

    def removed(labels, **more):
        fields = {"medium": engine.MEDIUM_GPU, "group_idx": 0}
        return engine.BlockRemoved(block_hashes=[name(label) for label in labels], **(fields | more))

    none = None
    return [
        # 0: a prompt of three blocks.
        [stored(["p4", "p8", "p12"], none, range(1, 13), session_id="s-1")],
        # 1: its continuation.
        [stored(["p16", "p20"], "p12", range(13, 21), extra_keys=[None, None])],
        # 2: the same tokens under an adapter.
        [stored(["l4", "l8"], none, range(1, 9), lora_id=7, lora_name="poet",
                extra_keys=[("poet",), ("poet",)])],
        # 3: under a salt, which only the first block repeats.
        [stored(["s4", "s8"], none, range(1, 9), extra_keys=[("tenant-1",), None])],
        # 4: with a picture in the second block, beginning in the first.
        [stored(["m4", "m8"], none, range(1, 9), extra_keys=[((MEDIA, 2),), ((MEDIA, -2),)])],
        # 5: the groups of a hybrid model: what is no prefix is named as such.
        [stored(["w4"], none, range(101, 105), group_idx=1, kv_cache_spec_kind="sliding_window",
                kv_cache_spec_sliding_window=128),
         stored(["b4"], none, range(101, 105), group_idx=2, kv_cache_spec_kind="mamba"),
         stored(["f4"], none, range(101, 105)),
         removed(["w4"], group_idx=1)],
        # 6: identities that a router cannot compute: embeddings, and tokens looked ahead at.
        [stored(["e4"], none, range(201, 205), extra_keys=[(EMBEDS,)]),
         stored(["a4"], none, range(301, 305), lookahead_token_ids=[[305]])],
        # 7: the prompt's first block goes to host memory, by its name alone; another to a store.
        [stored(["p4"], none, [], block_size=0, medium=engine.MEDIUM_CPU),
         stored(["p8"], none, [], block_size=0, medium=engine.MEDIUM_STORAGE, locality="REMOTE",
                ownership="fs")],
        # 8: two blocks are evicted, one is stored again.
        [removed(["p20"]), removed(["l8"]), removed(["p16"])],
        [stored(["p16"], "p12", range(13, 17), extra_keys=[None])],
        # 10: nothing happened.
        [],
        # 11: all of it is gone; the next prompt comes in.
        [engine.AllBlocksCleared()],
        [stored(["q4", "q8"], none, range(401, 409))],
    ]


def sglang_batches(engine, bigram):
    """The same for an engine that stores page by page; `bigram` is its speculative form."""
    medium = engine.StorageMedium

    def page(label, parent, first, **more):
        tokens = range(first, first + 4)
        fields = {
            "block_hashes": [as_signed(label)],
            "parent_block_hash": as_signed(parent) if parent else None,
            "token_ids": [(token, token + 1) for token in tokens] if bigram else list(tokens),
            "block_size": 4,
            "lora_id": None,
            "medium": medium.GPU,
            "cache_salt": None,
            "session_id": None,
        }
        return engine.BlockStored(**(fields | more))

    def removed(labels, where):
        return engine.BlockRemoved(block_hashes=[as_signed(label) for label in labels], medium=where)

    batches = [
        # 0 and 1: a prompt of three pages.
        [page("p4", None, 1), page("p8", "p4", 5)],
        [page("p12", "p8", 9, session_id="s-1")],
    ]
    if not bigram:
        batches += [
            # 2: a salt; 3: an adapter; 4: pages written through to host memory, disk and a pool.
            [page("s4", None, 1, cache_salt="tenant-1"), page("s8", "s4", 5, cache_salt="tenant-1")],
            [page("l4", None, 1, lora_name="poet")],
            [page("p4", None, 1, medium=medium.CPU), page("p8", "p4", 5, medium=medium.CPU),
             page("p4", None, 1, medium=medium.DISK), page("p4", None, 1, medium=medium.EXTERNAL)],
        ]
    return batches + [
        [removed(["p8", "p12"], medium.GPU)],
        [removed(["p4"], medium.CPU), page("p8", "p4", 5), page("p12", "p8", 9)],
        [engine.AllBlocksCleared()],
        [page("q4", None, 401)],
    ]


def written(kind, frames):
    return " ".join([kind] + [frame.hex() or "-" for frame in frames])


def replayed(context, place, start):
    asker = context.socket(zmq.DEALER)
    asker.connect(place)
    question = [b"", start.to_bytes(8, "big")]
    asker.send_multipart(question)
    lines = [written("ask", question)]
    while True:
        reply = asker.recv_multipart()
        lines.append(written("answer", reply))
        if reply[-1] == b"":
            asker.close(linger=0)
            return lines


def record(title, engine, make, batches, replays):
    """Publishes batches and asks for replays; the lines that say what was received.

    `replays` names the batch after which a replay is asked for, and from which number on.
    """
    place = f"inproc://{title.replace(' ', '-')}"
    publisher, suffix = make(place, f"{place}-replay")
    context = zmq.Context.instance()
    live = context.socket(zmq.SUB)
    live.subscribe("")
    live.connect(place + suffix)
    lines = [f"[{title}]"]
    for number, events in enumerate(batches):
        publisher.publish(engine.KVEventBatch(ts=TIME, events=events))
        if not live.poll(5000):
            raise RuntimeError("nothing published; the subscription came late: run again")
        lines.append(written("live", live.recv_multipart()))
        for start in [start for after, start in replays if after == number]:
            lines += replayed(context, f"{place}-replay{suffix}", start)
    live.close(linger=0)
    publisher.shutdown()
    return lines


def main(vllm_path, sglang_path):
    vllm, sglang = load_vllm(vllm_path), load_sglang(sglang_path)

    def vllm_publisher(rank, topic):
        def make(place, replay):
            publisher = vllm.ZmqEventPublisher(rank, place, replay, topic=topic)
            return publisher, f"_dp{rank}" if rank else ""
        return make

    def sglang_publisher(rank, topic):
        def make(place, replay):
            publisher = sglang.ZmqEventPublisher(rank, place, replay, topic=topic)
            return publisher, f"_dp{rank}" if rank else ""
        return make

    sections = [
        record("vllm 0.33.0 rank 0, numbers", vllm, vllm_publisher(0, "kv-events"),
               vllm_batches(vllm, as_unsigned), [(9, 0), (12, 9)]),
        record("vllm 0.33.0 rank 1, digests", vllm, vllm_publisher(1, ""),
               vllm_batches(vllm, as_bytes), [(9, 7)]),
        record("sglang 0.5.23 rank 0", sglang, sglang_publisher(0, ""),
               sglang_batches(sglang, False), [(6, 0), (8, 6)]),
        record("sglang 0.5.23 rank 1, bigrams", sglang, sglang_publisher(1, "kv@worker@model"),
               sglang_batches(sglang, True), [(3, 2)]),
    ]
    print("\n\n".join("\n".join(section) for section in sections))


if __name__ == "__main__":
    main(*sys.argv[1:])
